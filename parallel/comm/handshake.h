// How a TcpStore and its server prove to each other that they know the same token, which neither sends: each signs what
// both have made up for this connection, so that nothing of it is of use on another. The client proves itself first:
// who knocks at a server's door learns nothing from it that could be tried against guesses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::handshake {

constexpr std::size_t nonce_size = 32;

/// What both sides know of a connection.
struct Meeting {
    std::string client_nonce, server_nonce;
    /// Of the server: who listens on another one cannot pass proofs on to it.
    int port = 0;
    /// Of TcpStoreOptions.
    std::string job;
};

enum class Side : std::uint8_t { client, server };

/// `size` random bytes of the system's. Throws CommunicationError when it has none.
std::string random_bytes(std::size_t size);
/// A token that nobody guesses: 32 hexadecimal digits. Throws as `random_bytes`.
std::string random_token();
/// HMAC-SHA-256 of the meeting under `token`; each side's is of no use to the other.
std::string proof_of(Side side, std::string_view token, const Meeting& meeting);
/// In a time that does not depend on what they hold.
bool equal(std::string_view a, std::string_view b);

}  // namespace lockstep::handshake
