// Protocol between a TcpStore and its server. Both sides check every length before they use it.
//
//   a frame:   u32 bytes that follow, u8 command or answer, then fields
//   a field:   u32 bytes that follow, those bytes
//
// Numbers are little-endian. A connection begins with the handshake: `hello` with the magic word and a nonce, answered
// by a nonce; then `proof` with the client's proof, answered by the server's. The server closes a connection that
// begins otherwise. Every frame is answered by one frame, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/error.h"

namespace lockstep::store_protocol {

enum class Command : std::uint8_t { hello, set, get, try_get, add, compare_set, remove, count, append_on_loss, proof };
enum class Answer : std::uint8_t {
    good,     ///< fields: the result, if any
    missing,  ///< no such key, or not in time
    refused   ///< one field: the reason
};

/// Prefix of all versions, and the magic word of this version.
constexpr std::string_view any_magic = "lockstep store ", magic = "lockstep store 2";
constexpr std::size_t longest_token = 256;
/// Maximum size of the text that is appended when a client is lost.
constexpr std::size_t longest_last_words = 4096;
constexpr std::size_t max_fields = 3;
/// Maximum size of frames from clients that have proved that they know the token.
constexpr std::size_t max_frame_bytes = (std::size_t{16} << 20) + 4096;
/// Maximum size of frames from other clients.
constexpr std::size_t longest_hello = 512;

struct Frame {
    std::uint8_t kind = 0;
    std::vector<std::string> fields;
};

std::string encode(std::uint8_t kind, const std::vector<std::string_view>& fields);
/// The frame of one field, up to the start of its `size` bytes.
std::string head_of(std::uint8_t kind, std::size_t size);
/// Decodes a frame's bytes without the length; nullopt if they are invalid.
std::optional<Frame> decode(std::string_view bytes);
/// The number in the first four bytes.
std::uint32_t length_of(std::string_view bytes);
/// Numbers as fields: 8 bytes.
std::string number(std::int64_t value);
std::optional<std::int64_t> number(std::string_view field);

}  // namespace lockstep::store_protocol

namespace lockstep::handshake {

// How a TcpStore and its server prove to each other that they know the same token without sending it: each
// authenticates the nonces of both, so that a proof is useless on another connection. The client proves itself first,
// so that a stranger gets nothing from the server that it could use to test guesses of the token.

constexpr std::size_t nonce_size = 32;

/// Facts about a connection that both sides know.
struct Meeting {
    std::string client_nonce, server_nonce;
    /// Port of the server: a process on another port cannot relay proofs to it.
    int port = 0;
    /// TcpStoreOptions::job.
    std::string job;
};

enum class Side : std::uint8_t { client, server };

/// `size` random bytes from the system. Throws CommunicationError if it has none.
std::string random_bytes(std::size_t size);
/// A random token: 32 hexadecimal digits. Throws as `random_bytes`.
std::string random_token();
/// HMAC-SHA-256 of side and meeting under `token`.
std::string proof_of(Side side, std::string_view token, const Meeting& meeting);
/// In constant time.
bool equal(std::string_view a, std::string_view b);

}  // namespace lockstep::handshake

namespace lockstep {

// Errors of a store that do not change with time.

/// Another attempt at this port would fail as well: the store there belongs to another job, has another token, or does
/// not admit this user.
class NotAdmitted : public CommunicationError {
public:
    using CommunicationError::CommunicationError;
};

/// The server that this client was connected to has ended, or has evicted it: another attempt would fail as well.
class StoreEnded : public CommunicationError {
public:
    using CommunicationError::CommunicationError;
};

}  // namespace lockstep
