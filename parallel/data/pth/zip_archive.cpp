// Format: APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (directory), 4.3.14 to 4.3.16 (its end).
#include "lockstep/parallel/data/pth/zip_archive.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/pth/torch_types.h"

namespace lockstep::internal {
namespace {

constexpr std::uint32_t local_mark = 0x04034b50, directory_mark = 0x02014b50, end_mark = 0x06054b50,
                        end64_mark = 0x06064b50, locator64_mark = 0x07064b50;
constexpr std::size_t local_bytes = 30, directory_entry_bytes = 46, end_bytes = 22, end64_bytes = 56,
                      locator64_bytes = 20;
constexpr std::uint32_t in_64_bits_32 = 0xffffffff;
constexpr std::uint16_t method_stored = 0, method_deflate = 8;
/// Maximum compression of deflate: 258 bytes in two bits.
constexpr std::uint64_t max_inflated = 1032;

/// The number at `at`; the caller has checked that enough bytes follow.
template <class T>
T number_at(std::span<const char> bytes, std::size_t at) {
    static_assert(std::is_unsigned_v<T>);
    T value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    return value;
}

template <std::size_t length>
std::array<char, length> read_bytes(const InputFile& file, std::uint64_t offset) {
    std::array<char, length> bytes{};
    file.read_at(offset, std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

struct DirectoryPlace {
    std::uint64_t offset = 0, bytes = 0, records = 0, end = 0;
};

/// Offset of the archive's end mark: at the very end, unless the archive has a comment or data was appended.
std::uint64_t find_end(const InputFile& file) {
    const std::uint64_t size = file.size();
    if (size < end_bytes)
        refuse_pth(file.name(), size,
                   "the file ends within the " + std::to_string(end_bytes) + " bytes at the end of an archive");
    constexpr std::uint64_t max_appended = std::uint64_t{1} << 16;
    std::vector<char> tail(std::min(size, end_bytes + max_appended));
    file.read_at(size - tail.size(), std::as_writable_bytes(std::span(tail)));
    for (std::size_t at = tail.size() - end_bytes + 1; at-- > 0;)
        if (number_at<std::uint32_t>(tail, at) == end_mark) return size - tail.size() + at;
    refuse_pth(file.name(), size - end_bytes, "the file does not end like an archive (truncated?)");
}

DirectoryPlace find_directory(const InputFile& file) {
    const std::uint64_t end_at = find_end(file);
    const auto end = read_bytes<end_bytes>(file, end_at);
    DirectoryPlace place{number_at<std::uint32_t>(end, 16), number_at<std::uint32_t>(end, 12),
                         number_at<std::uint16_t>(end, 10), end_at};
    if (end_at >= locator64_bytes + end64_bytes) {
        const auto locator = read_bytes<locator64_bytes>(file, end_at - locator64_bytes);
        if (number_at<std::uint32_t>(locator, 0) == locator64_mark) {
            place.end = number_at<std::uint64_t>(locator, 8);
            if (place.end != end_at - locator64_bytes - end64_bytes)
                refuse_pth(file.name(), end_at - locator64_bytes,
                           "the end record of the directory is not at the expected offset");
            const auto end64 = read_bytes<end64_bytes>(file, place.end);
            if (number_at<std::uint32_t>(end64, 0) != end64_mark)
                refuse_pth(file.name(), place.end, "the end record of the directory is not at the expected offset");
            place.records = number_at<std::uint64_t>(end64, 32);
            place.bytes = number_at<std::uint64_t>(end64, 40);
            place.offset = number_at<std::uint64_t>(end64, 48);
        }
    }
    if (place.offset > place.end || place.bytes != place.end - place.offset)
        refuse_pth(file.name(), place.end,
                   "the directory should have " + std::to_string(place.bytes) + " bytes from offset " +
                       std::to_string(place.offset) + " on, which do not end here");
    if (place.records > place.bytes / directory_entry_bytes)
        refuse_pth(file.name(), place.end,
                   "a directory of " + std::to_string(place.bytes) + " bytes cannot hold " +
                       std::to_string(place.records) + " records");
    return place;
}

/// Sizes and offset that do not fit in 32 bits are among the extra fields, in this order.
void take_64_bits(std::span<const char> extra, std::array<std::uint64_t*, 3> wanted) {
    constexpr std::size_t field_header = 4;
    constexpr std::uint16_t zip64 = 1;
    while (extra.size() >= field_header) {
        const std::size_t length = number_at<std::uint16_t>(extra, 2);
        if (length > extra.size() - field_header) return;
        if (number_at<std::uint16_t>(extra, 0) == zip64) {
            std::size_t at = field_header;
            for (std::uint64_t* value : wanted) {
                if (*value != in_64_bits_32) continue;
                if (at + sizeof(std::uint64_t) > field_header + length) return;
                *value = number_at<std::uint64_t>(extra, at);
                at += sizeof(std::uint64_t);
            }
            return;
        }
        extra = extra.subspan(field_header + length);
    }
}

/// Offset of a record's bytes; its local header must have the same name.
std::uint64_t data_offset(const InputFile& file, const ZipRecord& record, std::uint64_t directory) {
    const auto refuse = [&] {
        refuse_pth(file.name(), record.header, "the record " + quote(record.name) + " does not begin here");
    };
    if (record.header > directory || directory - record.header < local_bytes + record.name.size()) refuse();
    std::string local(local_bytes + record.name.size(), '\0');
    file.read_at(record.header, std::as_writable_bytes(std::span(local)));
    if (number_at<std::uint32_t>(local, 0) != local_mark ||
        number_at<std::uint16_t>(local, 8) != (record.deflated ? method_deflate : method_stored) ||
        number_at<std::uint16_t>(local, 26) != record.name.size() ||
        std::string_view(local).substr(local_bytes) != record.name)
        refuse();
    return record.header + local.size() + number_at<std::uint16_t>(local, 28);
}

}  // namespace

ZipArchive::ZipArchive(const InputFile& file) {
    const DirectoryPlace place = find_directory(file);
    directory_.resize(place.bytes);
    file.read_at(place.offset, std::as_writable_bytes(std::span(directory_)));
    records_.reserve(place.records);
    std::span<const char> rest(directory_);
    const auto here = [&] { return place.end - rest.size(); };
    while (!rest.empty()) {
        if (rest.size() < directory_entry_bytes || number_at<std::uint32_t>(rest, 0) != directory_mark)
            refuse_pth(file.name(), here(), "the directory has no record here");
        const std::size_t name = number_at<std::uint16_t>(rest, 28), extra = number_at<std::uint16_t>(rest, 30),
                          comment = number_at<std::uint16_t>(rest, 32);
        if (name + extra + comment > rest.size() - directory_entry_bytes)
            refuse_pth(file.name(), here(), "a record exceeds the directory");
        ZipRecord record;
        record.name = {rest.data() + directory_entry_bytes, name};
        record.crc = number_at<std::uint32_t>(rest, 16);
        record.packed = number_at<std::uint32_t>(rest, 20);
        record.bytes = number_at<std::uint32_t>(rest, 24);
        record.header = number_at<std::uint32_t>(rest, 42);
        take_64_bits(rest.subspan(directory_entry_bytes + name, extra),
                     {&record.bytes, &record.packed, &record.header});
        constexpr std::uint16_t encrypted = 1;
        const auto method = number_at<std::uint16_t>(rest, 10);
        record.deflated = method == method_deflate;
        if ((method != method_stored && !record.deflated) || (number_at<std::uint16_t>(rest, 8) & encrypted) != 0)
            refuse_pth(file.name(), here(),
                       "the record " + quote(record.name) + " is encrypted, or compressed other than by deflate");
        if (!record.deflated && record.packed != record.bytes)
            refuse_pth(file.name(), here(), "the record " + quote(record.name) + " has two sizes");
        record.offset = data_offset(file, record, place.offset);
        if (record.offset > place.offset || record.packed > place.offset - record.offset)
            refuse_pth(file.name(), here(),
                       "the record " + quote(record.name) + " of " + std::to_string(record.packed) +
                           " bytes overlaps the directory");
        if (record.deflated && record.bytes / max_inflated > record.packed)
            refuse_pth(file.name(), here(),
                       "the record " + quote(record.name) + " of " + std::to_string(record.packed) +
                           " bytes cannot inflate to " + std::to_string(record.bytes));
        records_.push_back(record);
        rest = rest.subspan(directory_entry_bytes + name + extra + comment);
    }
    if (records_.size() != place.records)
        refuse_pth(file.name(), place.end,
                   "the directory holds " + std::to_string(records_.size()) + " records; expected " +
                       std::to_string(place.records));
    std::sort(records_.begin(), records_.end(),
              [](const ZipRecord& a, const ZipRecord& b) { return a.header < b.header; });
    by_name_.reserve(records_.size());
    std::uint64_t free = 0;
    for (const ZipRecord& record : records_) {
        if (record.header < free)
            refuse_pth(file.name(), record.header, "the record " + quote(record.name) + " overlaps another one");
        free = record.offset + record.packed;
        if (!by_name_.emplace(record.name, &record).second)
            refuse_pth(file.name(), record.header, "the record " + quote(record.name) + " is repeated");
    }
}

const ZipRecord* ZipArchive::find(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
}

std::uint32_t crc_of(std::uint32_t before, std::span<const std::byte> bytes) {
    return static_cast<std::uint32_t>(
        ::crc32_z(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

void require_crc(const InputFile& file, const ZipRecord& record, std::uint32_t found) {
    if (found == record.crc) return;
    refuse_pth(file.name(), record.offset,
               "the " + std::to_string(record.bytes) + " bytes of the record " + quote(record.name) +
                   " do not match its checksum");
}

void require_crc(const InputFile& file, const ZipRecord& record) {
    constexpr std::uint64_t piece = std::uint64_t{1} << 20;
    std::vector<std::byte> bytes(std::min(piece, record.bytes));
    std::uint32_t found = 0;
    for (std::uint64_t done = 0; done < record.bytes; done += piece) {
        const auto some = std::span(bytes).first(std::min(piece, record.bytes - done));
        file.read_at(record.offset + done, some);
        found = crc_of(found, some);
    }
    require_crc(file, record, found);
}

namespace {

/// Fills `to` from the compressed bytes, which must contain exactly that much.
void inflate_record(const InputFile& file, const ZipRecord& record, std::span<std::byte> to) {
    const auto refuse = [&](const std::string& what) {
        refuse_pth(file.name(), record.offset, "the record " + quote(record.name) + " " + what);
    };
    z_stream stream{};
    constexpr int raw_window = -15;
    if (inflateInit2(&stream, raw_window) != Z_OK)
        throw DataError(file.name() + ": zlib cannot be started (out of memory)");
    struct End {
        z_stream& stream;
        ~End() { inflateEnd(&stream); }
    } const end{stream};
    constexpr std::uint64_t piece = std::uint64_t{1} << 18, largest_room = std::uint64_t{1} << 30;
    std::vector<std::byte> input(std::min(piece, record.packed));
    std::uint64_t taken = 0, done = 0;
    std::byte beyond{};  // receives excess output
    for (int status = Z_OK; status != Z_STREAM_END;) {
        if (stream.avail_in == 0) {
            const auto some = std::span(input).first(std::min(piece, record.packed - taken));
            if (some.empty()) refuse("is truncated");
            file.read_at(record.offset + taken, some);
            taken += some.size();
            stream.next_in = reinterpret_cast<Bytef*>(some.data());
            stream.avail_in = static_cast<uInt>(some.size());
        }
        const std::uint64_t room = std::min<std::uint64_t>(to.size() - done, largest_room);
        stream.next_out = reinterpret_cast<Bytef*>(room > 0 ? to.data() + done : &beyond);
        stream.avail_out = room > 0 ? static_cast<uInt>(room) : 1;
        const uInt before = stream.avail_out;
        status = inflate(&stream, Z_NO_FLUSH);
        if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) refuse("is damaged");
        done += before - stream.avail_out;
        if (done > to.size()) refuse("inflates to more than its size");
    }
    if (done != to.size() || taken != record.packed || stream.avail_in != 0) refuse("does not inflate to its size");
}

}  // namespace

void read_record(const InputFile& file, const ZipRecord& record, std::span<std::byte> to) {
    if (record.deflated)
        inflate_record(file, record, to);
    else
        file.read_at(record.offset, to);
    require_crc(file, record, crc_of(0, to));
}

std::string read_record(const InputFile& file, const ZipRecord& record) {
    std::string bytes(record.bytes, '\0');
    read_record(file, record, std::as_writable_bytes(std::span(bytes)));
    return bytes;
}

}  // namespace lockstep::internal
