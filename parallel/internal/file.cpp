#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/parallel/internal/file.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {
namespace {

std::string reason() { return std::generic_category().message(errno); }

// one read or write call moves at most 2 GiB on Linux
constexpr std::size_t largest_transfer = std::size_t{1} << 30;

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
    // non-blocking, so that a pipe is refused below and not waited for
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) {
        throw DataError(name_ + ": cannot be opened: " + reason() + "; check the name and the permissions");
    }
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        throw DataError(name_ + ": is not a regular file; give the name of a file");
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

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
    if (!path_.has_filename()) {
        throw InvalidArgument("cannot write to '" + path_.string() + "': it names no file; give a file name");
    }
    // The rename would replace a device or a pipe, as root even /dev/null, by a file.
    if (std::error_code ignored;
        std::filesystem::exists(path_, ignored) && !std::filesystem::is_regular_file(path_, ignored)) {
        const char* kind = std::filesystem::is_directory(path_, ignored) ? "a directory" : "no regular file";
        throw InvalidArgument("cannot write " + path_.string() + ": it is " + kind + "; give a file name");
    }
    if (try_without_name()) return;
    do {
        temporary_ = next_name();
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) {
        throw InvalidArgument("cannot write " + path_.string() + ": " + reason() +
                              "; choose a directory that exists and can be written");
    }
}

/// A file without a name goes with its process, killed or not. Not every file system can have one.
bool AtomicFile::try_without_name() {
    if (::access("/proc/self/fd", X_OK) != 0) return false;  // there it will be given its name
    const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
    descriptor_ = ::open(parent.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    return descriptor_ >= 0;
}

std::string AtomicFile::next_name() const {
    static std::atomic<unsigned> count{0};
    return path_.string() + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
}

/// Where no file is in the way it is that of the path at once.
void AtomicFile::give_name() {
    const std::string nameless = "/proc/self/fd/" + std::to_string(descriptor_);
    const auto link_as = [&](const std::string& name) {
        return ::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_as(path_.string())) return;
    std::string name;
    do {
        if (errno != EEXIST) fail("naming");
        name = next_name();
    } while (!link_as(name));
    temporary_ = name;
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* action) const {
    throw DataError(path_.string() + ": offset " + std::to_string(written_) + ": " + action + " failed: " + reason() +
                    "; make room or choose another place (the old file, if any, is as it was)");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t put = ::write(descriptor_, bytes.data(), std::min(bytes.size(), largest_transfer));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail("writing");
        written_ += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
}

void AtomicFile::commit() {
    if (::fsync(descriptor_) != 0) fail("syncing");
    if (temporary_.empty()) give_name();
    // closing reports what a network file system could not write
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("closing");
    if (!temporary_.empty() && ::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming");
    temporary_.clear();
    // The new name outlives a power failure only when the directory is synced too. The file itself is complete, so
    // file systems that cannot sync directories are no reason to fail.
    const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
    const int directory = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0) {
        ::fsync(directory);
        ::close(directory);
    }
}

}  // namespace lockstep::internal
