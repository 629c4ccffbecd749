// What a TcpStore and its server say to each other. Both sides check every length before they believe it.
//
//   a frame:   u32 bytes that follow, u8 command or answer, then fields
//   a field:   u32 bytes that follow, those bytes
//
// Numbers are little-endian. A connection begins with the handshake (handshake.h): `hello` with the magic word and a
// nonce, answered by a nonce; then `proof` with the client's, answered by the server's. The server closes a connection
// that begins otherwise. Every frame is answered by one frame, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store_protocol {

enum class Command : std::uint8_t { hello, set, get, try_get, add, compare_set, remove, count, append_on_loss, proof };
enum class Answer : std::uint8_t {
    good,     ///< fields: the result, if there is one
    missing,  ///< no such key, or not in time
    refused   ///< a field that says why
};

/// Prefix of all versions, and the magic word of this version.
constexpr std::string_view any_magic = "lockstep store ", magic = "lockstep store 2";
constexpr std::size_t longest_token = 256;
/// Maximum size of the text that is appended when a client is lost.
constexpr std::size_t longest_last_words = 4096;
constexpr std::size_t most_fields = 3;
/// Maximum size of frames from clients that have proved that they know the token.
constexpr std::size_t longest_frame = (std::size_t{16} << 20) + 4096;
/// Maximum size of frames from other clients.
constexpr std::size_t longest_hello = 512;

struct Frame {
    std::uint8_t kind = 0;
    std::vector<std::string> fields;
};

std::string encode(std::uint8_t kind, const std::vector<std::string_view>& fields);
/// The frame of one field, up to where its `size` bytes begin.
std::string head_of(std::uint8_t kind, std::size_t size);
/// Decodes a frame's bytes without the length; nullopt if they are invalid.
std::optional<Frame> decode(std::string_view bytes);
/// The number in the first four bytes.
std::uint32_t length_of(std::string_view bytes);
/// Numbers as fields: 8 bytes.
std::string number(std::int64_t value);
std::optional<std::int64_t> number(std::string_view field);

}  // namespace lockstep::store_protocol
