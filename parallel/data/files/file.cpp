#include "lockstep/parallel/data/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

std::string reason() { return std::generic_category().message(errno); }

std::filesystem::path followed(const std::filesystem::path& path) {
    require_trusted_links(path);
    std::filesystem::path name = path;
    for (int i = 0; i < max_links; ++i) {
        std::error_code error;
        if (!std::filesystem::is_symlink(name, error)) return name;
        const std::filesystem::path target = std::filesystem::read_symlink(name, error);
        if (error) return name;
        name = target.is_absolute() ? target : directory_of(name) / target;
    }
    throw InvalidArgument(path.string() + ": symbolic links form a cycle; expected a file");
}

void require_replaceable(const std::filesystem::path& path) {
    if (!path.has_filename()) {
        throw InvalidArgument("cannot write to '" + path.string() + "': expected a file name");
    }
    // The rename would replace a device or a pipe, for root even /dev/null, by a file.
    if (std::error_code ignored;
        std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
        const char* kind = std::filesystem::is_directory(path, ignored) ? "a directory" : "not a regular file";
        throw InvalidArgument("cannot write " + path.string() + ": it is " + kind + "; expected a file name");
    }
}

FileIdentity identity_of(const std::filesystem::path& path) {
    struct stat found {};
    if (::stat(path.c_str(), &found) == 0) return {found.st_dev, found.st_ino, ""};
    const std::filesystem::path target = followed(path);
    if (::stat(directory_of(target).c_str(), &found) == 0) return {found.st_dev, found.st_ino, target.filename()};
    std::error_code failed;  // the working directory has been removed
    const std::filesystem::path absolute = std::filesystem::absolute(target, failed);
    return {0, 0, (failed ? target : absolute).lexically_normal()};
}

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
    // non-blocking, so that a pipe is rejected below instead of waited for
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) {
        throw DataError(name_ + ": cannot be opened: " + reason());
    }
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        throw DataError(name_ + ": is not a regular file");
    }
    size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::InputFile(std::string name, std::span<const std::byte> bytes)
    : name_(std::move(name)), memory_(bytes.data()), size_(bytes.size()) {}

InputFile::~InputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : name_(std::move(other.name_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      memory_(other.memory_),
      size_(other.size_) {}

void InputFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
    std::size_t done = 0;
    if (descriptor_ < 0) {
        done = static_cast<std::size_t>(std::min<std::uint64_t>(to.size(), size_ - std::min(offset, size_)));
        std::copy_n(memory_ + std::min(offset, size_), done, to.begin());
        if (done < to.size())
            throw DataError(name_ + ": offset " + std::to_string(size_) + ": cannot read " +
                            std::to_string(to.size() - done) + " more bytes: the data ends here; it is truncated");
        return;
    }
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
