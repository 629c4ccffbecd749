#include "lockstep/parallel/comm/store/handshake.h"

#include <fmt/format.h>
#include <sodium.h>

#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"

namespace lockstep::handshake {

namespace {

void require_library() {
    static const bool ready = sodium_init() >= 0;
    if (!ready)
        throw CommunicationError(
            "store: libsodium cannot be initialized; does this system have getrandom or /dev/urandom?");
}

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

std::string random_bytes(std::size_t size) {
    require_library();
    std::string bytes(size, '\0');
    randombytes_buf(bytes.data(), bytes.size());
    return bytes;
}

std::string random_token() {
    std::string token;
    for (const char byte : random_bytes(16)) token += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return token;
}

std::string proof_of(Side side, std::string_view token, const Meeting& meeting) {
    require_library();
    // As frames: every part is preceded by its length, so that no two meetings give the same bytes.
    const std::string port = store_protocol::number(meeting.port);
    std::string signed_text(store_protocol::magic);
    for (const std::string_view part : {std::string_view(side == Side::client ? "client" : "server"),
                                        std::string_view(port), std::string_view(meeting.job),
                                        std::string_view(meeting.client_nonce), std::string_view(meeting.server_nonce)})
        signed_text += store_protocol::encode(0, {part});
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, bytes_of(token), token.size());
    crypto_auth_hmacsha256_update(&state, bytes_of(signed_text), signed_text.size());
    std::string proof(crypto_auth_hmacsha256_BYTES, '\0');
    crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(proof.data()));
    sodium_memzero(&state, sizeof state);
    return proof;
}

bool equal(std::string_view a, std::string_view b) {
    return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep::handshake
