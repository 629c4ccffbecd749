#include "lockstep/parallel/data/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/parallel/data/files/file_name.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
    // non-blocking, so that a pipe is refused below and not waited for
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) {
        throw DataError(name_ + ": cannot be opened: " + reason() + "; check the name and the permissions");
    }
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        throw DataError(name_ + ": is not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : name_(std::move(other.name_)), descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_) {}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
    std::size_t done = 0;
    while (done < to.size()) {
        const ssize_t got = ::pread(descriptor_, to.data() + done, std::min(to.size() - done, largest_transfer),
                                    static_cast<off_t>(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            const std::string why = got == 0 ? "the file ends here" : reason();
            throw DataError(name_ + ": offset " + std::to_string(offset + done) + ": cannot read " +
                            std::to_string(to.size() - done) + " more bytes: " + why +
                            "; the file is truncated or was changed while it was read");
        }
        done += static_cast<std::size_t>(got);
    }
}

}  // namespace lockstep::internal
