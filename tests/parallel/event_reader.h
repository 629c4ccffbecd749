// Event files read back with nothing of what wrote them: checksums bit by bit, protobuf by its wire format alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
    if (at + sizeof(T) > bytes.size()) throw std::runtime_error("a number is cut off");
    T number;
    std::memcpy(&number, bytes.data() + at, sizeof(T));
    return number;
}

inline std::uint32_t bitwise_masked_crc(std::string_view bytes) {
    std::uint32_t crc = 0xffffffff;
    for (const char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
    }
    crc ^= 0xffffffff;
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

/// The data of all records. Throws where a length or a checksum is wrong.
inline std::vector<std::string> read_records(std::string_view file) {
    std::vector<std::string> records;
    while (!file.empty()) {
        const auto length = static_cast<std::size_t>(number_at<std::uint64_t>(file, 0));
        if (number_at<std::uint32_t>(file, 8) != bitwise_masked_crc(file.substr(0, 8)))
            throw std::runtime_error("wrong checksum of a length");
        const std::string_view data = file.substr(12, length);
        if (number_at<std::uint32_t>(file, 12 + length) != bitwise_masked_crc(data))
            throw std::runtime_error("wrong checksum of data");
        records.emplace_back(data);
        file.remove_prefix(16 + length);
    }
    return records;
}

/// A message: what each field holds, in order, as bytes or as a number.
struct Fields {
    std::map<unsigned, std::vector<std::string>> bytes;
    std::map<unsigned, std::vector<std::uint64_t>> numbers;
    std::map<unsigned, std::vector<double>> reals;

    explicit Fields(std::string_view text) {
        const auto varint = [&] {
            std::uint64_t value = 0;
            for (unsigned shift = 0;; shift += 7) {
                const auto byte = number_at<unsigned char>(text, 0);
                text.remove_prefix(1);
                value |= static_cast<std::uint64_t>(byte & 127) << shift;
                if (byte < 128) return value;
            }
        };
        while (!text.empty()) {
            const std::uint64_t key = varint();
            const auto field = static_cast<unsigned>(key >> 3);
            switch (key & 7) {
                case 0: numbers[field].push_back(varint()); break;
                case 1:
                    reals[field].push_back(number_at<double>(text, 0));
                    text.remove_prefix(8);
                    break;
                case 2: {
                    const auto length = static_cast<std::size_t>(varint());
                    if (length > text.size()) throw std::runtime_error("a field is cut off");
                    bytes[field].emplace_back(text.substr(0, length));
                    text.remove_prefix(length);
                    break;
                }
                case 5:
                    reals[field].push_back(number_at<float>(text, 0));
                    text.remove_prefix(4);
                    break;
                default: throw std::runtime_error("no such type");
            }
        }
    }
    Fields message(unsigned field, std::size_t index = 0) const { return Fields(bytes.at(field).at(index)); }
    std::vector<double> packed(unsigned field) const {
        std::vector<double> all;
        const std::string& text = bytes.at(field).at(0);
        for (std::size_t at = 0; at < text.size(); at += 8) all.push_back(number_at<double>(text, at));
        return all;
    }
};

}  // namespace lockstep::test
