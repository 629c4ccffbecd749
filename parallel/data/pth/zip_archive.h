// The zip archives of torch.save, also repacked ones. A library for zip files would add encryption and writing, and
// would not report offsets and overlaps, which are needed here.
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

/// A record: where its bytes are in the file, and the checksum of its content.
struct ZipRecord {
    std::string_view name;
    std::uint64_t header = 0;  ///< start of the header that precedes the bytes
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;   ///< size of its content
    std::uint64_t packed = 0;  ///< bytes in the file: equal, unless it is deflated
    std::uint32_t crc = 0;
    bool deflated = false;
};

/// The directory of an archive, read and checked: no record is encrypted, compressed other than by deflate, exceeds the
/// file, overlaps another one or has the same name. Memory and time are proportional to the directory's length. Up to
/// 64 KiB after the archive are ignored.
class ZipArchive {
public:
    /// Throws DataError for anything else.
    explicit ZipArchive(const InputFile& file);
    /// All records by offset.
    const std::vector<ZipRecord>& records() const { return records_; }
    /// Null if no record has that name.
    const ZipRecord* find(std::string_view name) const;

private:
    std::vector<char> directory_;  ///< owns the names
    std::vector<ZipRecord> records_;
    std::unordered_map<std::string_view, const ZipRecord*> by_name_;
};

/// Continues the checksum of a record's bytes, from 0.
std::uint32_t crc_of(std::uint32_t before, std::span<const std::byte> bytes);
/// Throws DataError: the bytes of this record have changed since they were written.
void require_crc(const InputFile& file, const ZipRecord& record, std::uint32_t found);
/// As above for a record that is not deflated, reading all of its bytes.
void require_crc(const InputFile& file, const ZipRecord& record);
/// Fills `to`, which has the size of the content. Throws DataError if the checksum does not match.
void read_record(const InputFile& file, const ZipRecord& record, std::span<std::byte> to);
std::string read_record(const InputFile& file, const ZipRecord& record);

}  // namespace lockstep::internal
