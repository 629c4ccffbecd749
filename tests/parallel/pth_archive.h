// Files of torch.save put together by hand: pickles from opcodes, archives from records.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

/// `count` bytes of a number, the lowest first.
inline std::string little(std::uint64_t value, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i, value >>= 8) bytes += static_cast<char>(value & 0xff);
    return bytes;
}

// Opcodes; Python's pickletools says what they do.
inline const std::string proto2("\x80\x02"), mark("("), none("N"), no("\x89"), stop(".");
inline std::string global(const std::string& module, const std::string& name) {
    return "c" + module + "\n" + name + "\n";
}
inline std::string text(const std::string& value) { return "X" + little(value.size(), 4) + value; }
inline std::string integer(std::int64_t value) { return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8); }
inline std::string tuple(const std::string& items) { return mark + items + "t"; }
inline std::string dictionary(const std::string& items) { return "}" + mark + items + "u"; }
inline const std::string ordered_dict = global("collections", "OrderedDict") + ")R";
inline std::string storage(const std::string& type, const std::string& key, std::int64_t elements) {
    return tuple(text("storage") + global("torch", type) + text(key) + text("cpu") + integer(elements)) + "Q";
}
inline std::string integers(const std::vector<std::int64_t>& values) {
    std::string items;
    for (const std::int64_t value : values) items += integer(value);
    return tuple(items);
}
inline std::string tensor(const std::string& of, std::int64_t offset, const std::vector<std::int64_t>& sizes,
                          const std::vector<std::int64_t>& strides) {
    return global("torch._utils", "_rebuild_tensor_v2") +
           tuple(of + integer(offset) + integers(sizes) + integers(strides) + no + ordered_dict) + "R";
}
/// A pickle of what `value` pushes.
inline std::string pickle(const std::string& value) { return proto2 + value + stop; }

struct ArchiveRecord {
    std::string name, bytes;
    std::uint16_t method = 0, flags = 0;
    std::uint64_t claimed = 0;  ///< bytes that it says it has, if not as many as it has; of a deflated one inflated
    std::string content = {};   ///< of a deflated one, for its checksum
};

/// As a zip archive stores it.
inline std::string deflate(const std::string& bytes) {
    z_stream stream{};
    ::deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
    std::string packed(bytes.size() + 100, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    ::deflate(&stream, Z_FINISH);
    packed.resize(stream.total_out);
    ::deflateEnd(&stream);
    return packed;
}

/// Of one archive: all offsets and sizes in 64 bits; what may be done to a directory entry before it is written.
struct ArchiveForm {
    bool zip64 = false;
    std::function<void(std::size_t index, std::uint64_t& header, std::string& name)> change = {};
};

inline std::string archive_of(const std::vector<ArchiveRecord>& records, const ArchiveForm& form = {}) {
    std::string file, directory;
    for (std::size_t i = 0; i < records.size(); ++i) {
        const ArchiveRecord& record = records[i];
        const std::string& content = record.content.empty() ? record.bytes : record.content;
        const auto* const bytes = reinterpret_cast<const unsigned char*>(content.data());
        const std::uint64_t crc = ::crc32(0, bytes, static_cast<unsigned>(content.size()));
        const std::uint64_t size = record.claimed != 0 ? record.claimed : record.bytes.size();
        const std::uint64_t packed = record.method == 8 && record.claimed != 0 ? record.bytes.size() : size;
        std::uint64_t header = file.size();
        std::string name = record.name;
        file += "PK\x03\x04" + little(0, 2) + little(record.flags, 2) + little(record.method, 2) + little(0, 4) +
                little(crc, 4) + little(packed, 4) + little(size, 4) + little(name.size(), 2) + little(2, 2) + name +
                "xy" + record.bytes;
        if (form.change) form.change(i, header, name);
        const std::string extra = form.zip64 ? little(7, 2) + little(1, 2) + "z" + little(1, 2) + little(24, 2) +
                                                   little(size, 8) + little(packed, 8) + little(header, 8)
                                             : "";
        const auto in_32 = [&](std::uint64_t value) { return little(form.zip64 ? 0xffffffff : value, 4); };
        directory += "PK\x01\x02" + little(0, 4) + little(record.flags, 2) + little(record.method, 2) + little(0, 4) +
                     little(crc, 4) + in_32(packed) + in_32(size) + little(name.size(), 2) + little(extra.size(), 2) +
                     little(0, 10) + in_32(header) + name + extra;
    }
    const std::uint64_t begin = file.size(), end = begin + directory.size();
    file += directory;
    if (form.zip64)
        file += "PK\x06\x06" + little(44, 8) + little(0, 12) + little(records.size(), 8) + little(records.size(), 8) +
                little(directory.size(), 8) + little(begin, 8) + "PK\x06\x07" + little(0, 4) + little(end, 8) +
                little(1, 4);
    return file + "PK\x05\x06" + little(0, 4) + little(records.size(), 2) + little(records.size(), 2) +
           little(directory.size(), 4) + little(begin, 4) + little(0, 2);
}

/// The archive of a pickle and the storages "0", "1", … that it names.
inline std::string pth_of(const std::string& pickle, const std::vector<std::string>& storages,
                          const std::string& byteorder = "little") {
    std::vector<ArchiveRecord> records{{"net/data.pkl", pickle}, {"net/byteorder", byteorder}};
    for (std::size_t i = 0; i < storages.size(); ++i) records.push_back({"net/data/" + std::to_string(i), storages[i]});
    records.push_back({"net/version", "3\n"});
    return archive_of(records);
}

}  // namespace lockstep::test
