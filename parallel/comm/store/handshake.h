// How a TcpStore and its server prove to each other that they know the same token without sending it: each
// authenticates the nonces of both, so that a proof is of no use on another connection. The client proves itself first,
// so that a stranger gets nothing from the server that it could test guesses of the token against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::handshake {

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

/// `size` random bytes of the system's. Throws CommunicationError when it has none.
std::string random_bytes(std::size_t size);
/// A random token: 32 hexadecimal digits. Throws as `random_bytes`.
std::string random_token();
/// HMAC-SHA-256 of side and meeting under `token`.
std::string proof_of(Side side, std::string_view token, const Meeting& meeting);
/// In constant time.
bool equal(std::string_view a, std::string_view b);

}  // namespace lockstep::handshake
