// Weights from files, memory, streams and descriptors, and the bytes of their file without one.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <istream>
#include <ostream>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/checkpoint/model_weights.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/held_signal.h"

namespace lockstep {

namespace {

using Put = std::function<void(std::span<const std::byte>)>;

/// `name`: of the destination, for messages.
void write_all(const std::vector<NamedTensor>& tensors, const char* name, const Put& put) {
    const internal::HostWeights weights(tensors);
    internal::put_weights(name, weights.tensors(), {}, put);
}

/// Everything that `get` fills into a part of a buffer, until it returns 0.
std::vector<std::byte> read_all(const std::function<std::size_t(std::span<std::byte>)>& get) {
    constexpr std::size_t least = std::size_t{1} << 16;
    std::vector<std::byte> bytes;
    std::size_t used = 0;
    for (;;) {
        if (used == bytes.size()) bytes.resize(std::max(least, 2 * used));
        const std::size_t got = get(std::span(bytes).subspan(used));
        if (got == 0) break;
        used += got;
    }
    bytes.resize(used);
    return bytes;
}

LoadResult load_from(internal::InputFile&& file, const std::vector<NamedTensor>& tensors, const LoadOptions& options) {
    const internal::StagedWeights weights(tensors, std::move(file), options);
    weights.store();
    return weights.result();
}

}  // namespace

namespace detail {

std::vector<std::byte> save_tensors(const std::vector<NamedTensor>& tensors) {
    std::vector<std::byte> all;
    write_all(tensors, "memory",
              [&](std::span<const std::byte> bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); });
    return all;
}

void save_tensors(const std::vector<NamedTensor>& tensors, std::ostream& out) {
    std::size_t written = 0;
    const auto require_good = [&] {
        if (!out) throw DataError(fmt::format("save: the stream failed after {} bytes", written));
    };
    require_good();
    write_all(tensors, "stream", [&](std::span<const std::byte> bytes) {
        out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        require_good();
        written += bytes.size();
    });
    out.flush();
    require_good();
}

void save_tensors(const std::vector<NamedTensor>& tensors, FileDescriptor out) {
    const HeldSignal no_reader(SIGPIPE), no_space(SIGXFSZ);
    std::size_t written = 0;
    write_all(tensors, "stream", [&](std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            const ssize_t count = ::write(out.number, bytes.data(), std::min(bytes.size(), internal::largest_transfer));
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0)
                throw DataError(fmt::format("save: writing to descriptor {} failed after {} bytes: {}", out.number,
                                            written, internal::reason()));
            bytes = bytes.subspan(static_cast<std::size_t>(count));
            written += static_cast<std::size_t>(count);
        }
    });
}

LoadResult load_tensors(const std::vector<NamedTensor>& tensors, const std::filesystem::path& path,
                        const LoadOptions& options) {
    return load_from(internal::InputFile(path), tensors, options);
}

LoadResult load_tensors(const std::vector<NamedTensor>& tensors, std::span<const std::byte> bytes,
                        const LoadOptions& options) {
    return load_from({"memory", bytes}, tensors, options);
}

LoadResult load_tensors(const std::vector<NamedTensor>& tensors, std::istream& in, const LoadOptions& options) {
    const auto require_read = [&] {
        if (in.bad() || (in.fail() && !in.eof())) throw DataError("load: the stream cannot be read");
    };
    require_read();
    const std::vector<std::byte> bytes = read_all([&](std::span<std::byte> to) {
        in.read(reinterpret_cast<char*>(to.data()), static_cast<std::streamsize>(to.size()));
        require_read();
        return static_cast<std::size_t>(in.gcount());
    });
    return load_from({"stream", bytes}, tensors, options);
}

LoadResult load_tensors(const std::vector<NamedTensor>& tensors, FileDescriptor in, const LoadOptions& options) {
    const std::vector<std::byte> bytes = read_all([&](std::span<std::byte> to) {
        for (;;) {
            const ssize_t count = ::read(in.number, to.data(), std::min(to.size(), internal::largest_transfer));
            if (count >= 0) return static_cast<std::size_t>(count);
            if (errno != EINTR)
                throw DataError(
                    fmt::format("load: reading from descriptor {} failed: {}", in.number, internal::reason()));
        }
    });
    return load_from({"stream", bytes}, tensors, options);
}

}  // namespace detail

}  // namespace lockstep
