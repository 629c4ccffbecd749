// The zip archives of torch.save: every record lies in them as it is, uncompressed. A library for zip files would bring
// decompression, encryption and writing, and say nothing of offsets and overlaps, which are what matters here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/parallel/data/files/file.h"

namespace lockstep::internal {

/// A record: where its bytes lie in the file, and their checksum.
struct ZipRecord {
    std::string_view name;
    std::uint64_t header = 0;  ///< where what precedes the bytes begins
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
};

/// The directory of an archive, read and checked: no record is compressed or encrypted, reaches out of the file,
/// overlaps another one or has its name. Memory and time grow with the directory's length.
class StoredZip {
public:
    /// Throws DataError for anything else.
    explicit StoredZip(const InputFile& file);
    /// All of them by place.
    const std::vector<ZipRecord>& records() const { return records_; }
    /// Null where there is none of that name.
    const ZipRecord* find(std::string_view name) const;

private:
    std::vector<char> directory_;  ///< holds the names
    std::vector<ZipRecord> records_;
    std::unordered_map<std::string_view, const ZipRecord*> by_name_;
};

/// Goes on with the checksum of a record's bytes, from 0.
std::uint32_t crc_of(std::uint32_t before, std::span<const std::byte> bytes);
/// Throws DataError: the bytes of this record are not those that were written.
void require_crc(const InputFile& file, const ZipRecord& record, std::uint32_t found);
/// The same, reading all of its bytes for that.
void require_crc(const InputFile& file, const ZipRecord& record);
/// All bytes of a record.
std::string read_record(const InputFile& file, const ZipRecord& record);

}  // namespace lockstep::internal
