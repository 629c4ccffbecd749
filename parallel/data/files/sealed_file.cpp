#include "lockstep/parallel/data/files/sealed_file.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/parallel/data/files/safetensors_header.h"
#include "lockstep/runtime/internal/digest.h"

namespace lockstep::internal {
namespace {

/// A sealed file begins with the length of its header and this text. The checksum of the whole file follows, computed
/// with zeros in its own place.
constexpr std::string_view opening = R"({"__metadata__":{"checksum":")";
constexpr const char* checksum_key = "checksum";
constexpr std::uint64_t opening_at = 8, seal_at = opening_at + opening.size();
const std::string& no_seal() {
    static const std::string zeros(Digest::length, '0');
    return zeros;
}

}  // namespace

void write_sealed(AtomicFile& file, const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                  SafetensorsMetadata metadata) {
    metadata[checksum_key] = no_seal();  // the first of the keys in use, which are written in order
    Digest digest;
    write_tensors(lay_out_safetensors(path, tensors, metadata), [&](std::span<const std::byte> bytes) {
        digest.add(bytes);
        file.write(bytes);
    });
    const std::string seal = digest.hex();
    file.overwrite(seal_at, std::as_bytes(std::span(seal)));
}

Seal seal_of(const InputFile& file) {
    if (file.size() < seal_at + Digest::length) return Seal::none;
    std::string start(seal_at + Digest::length, '\0');
    file.read_at(0, std::as_writable_bytes(std::span(start)));
    if (std::string_view(start).substr(opening_at, opening.size()) != opening) return Seal::none;
    const std::string seal = start.substr(seal_at);
    Digest digest;
    digest.add(std::as_bytes(std::span(start).first(seal_at)));
    digest.add(std::as_bytes(std::span(no_seal())));
    std::vector<std::byte> piece(std::size_t{1} << 20);
    for (std::uint64_t at = start.size(); at < file.size(); at += piece.size()) {
        const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), file.size() - at));
        file.read_at(at, std::span(piece).first(bytes));
        digest.add(std::span(piece).first(bytes));
    }
    return digest.hex() == seal ? Seal::good : Seal::broken;
}

}  // namespace lockstep::internal
