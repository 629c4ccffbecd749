#include "lockstep/parallel/comm/store/store_protocol.h"

#include <fmt/format.h>
#include <sodium.h>

#include "lockstep/runtime/error.h"

namespace lockstep::store_protocol {

namespace {

void put(std::string& bytes, std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

std::uint64_t take(std::string_view bytes) {
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
}

}  // namespace

std::string encode(std::uint8_t kind, const std::vector<std::string_view>& fields) {
    std::size_t size = 1;
    for (const std::string_view field : fields) size += 4 + field.size();
    std::string bytes;
    bytes.reserve(4 + size);
    put(bytes, size, 4);
    put(bytes, kind, 1);
    for (const std::string_view field : fields) {
        put(bytes, field.size(), 4);
        bytes += field;
    }
    return bytes;
}

std::string head_of(std::uint8_t kind, std::size_t size) {
    std::string bytes;
    put(bytes, 1 + 4 + size, 4);
    put(bytes, kind, 1);
    put(bytes, size, 4);
    return bytes;
}

std::optional<Frame> decode(std::string_view bytes) {
    if (bytes.empty()) return std::nullopt;
    Frame frame{static_cast<std::uint8_t>(bytes[0]), {}};
    bytes.remove_prefix(1);
    while (!bytes.empty()) {
        if (bytes.size() < 4 || frame.fields.size() == max_fields) return std::nullopt;
        const std::size_t size = length_of(bytes);
        bytes.remove_prefix(4);
        if (size > bytes.size()) return std::nullopt;
        frame.fields.emplace_back(bytes.substr(0, size));
        bytes.remove_prefix(size);
    }
    return frame;
}

std::uint32_t length_of(std::string_view bytes) { return static_cast<std::uint32_t>(take(bytes.substr(0, 4))); }

std::string number(std::int64_t value) {
    std::string bytes;
    put(bytes, static_cast<std::uint64_t>(value), 8);
    return bytes;
}

std::optional<std::int64_t> number(std::string_view field) {
    if (field.size() != 8) return std::nullopt;
    return static_cast<std::int64_t>(take(field));
}

}  // namespace lockstep::store_protocol

namespace lockstep::handshake {

namespace {

void require_library() {
    static const bool ready = sodium_init() >= 0;
    if (!ready)
        throw CommunicationError(
            "store: libsodium cannot be initialized; expected a system with getrandom or /dev/urandom");
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
    // As frames: the length precedes every part, so that no two meetings give the same bytes.
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
