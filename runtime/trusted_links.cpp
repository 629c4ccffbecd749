#include "lockstep/runtime/internal/trusted_links.h"

#include <sys/stat.h>
#include <unistd.h>

#include <deque>
#include <string>
#include <system_error>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

std::filesystem::path directory_of(const std::filesystem::path& path) {
    return path.has_parent_path() ? path.parent_path() : ".";
}

namespace {

/// The kernel's rule for /tmp (fs.protected_symlinks), which is not enabled everywhere.
void require_trusted_link(const std::filesystem::path& link) {
    struct stat own {
    }, directory{};
    if (::lstat(link.c_str(), &own) != 0 || !S_ISLNK(own.st_mode) ||
        ::stat(directory_of(link).c_str(), &directory) != 0)
        return;
    constexpr mode_t shared = S_ISVTX | S_IWOTH;
    if ((directory.st_mode & shared) != shared || own.st_uid == ::geteuid() || own.st_uid == directory.st_uid) return;
    throw InvalidArgument("cannot use " + link.string() + ": it is a symbolic link of another user (" +
                          std::to_string(own.st_uid) + ") in a directory that all users share; use another name");
}

}  // namespace

void require_trusted_links(const std::filesystem::path& path) {
    std::deque<std::filesystem::path> rest(path.begin(), path.end());
    std::filesystem::path reached;  // without links
    for (int links = 0; !rest.empty();) {
        const std::filesystem::path next = reached / rest.front();
        rest.pop_front();
        require_trusted_link(next);
        std::error_code error;
        const std::filesystem::path target = std::filesystem::read_symlink(next, error);
        if (error) {  // not a link
            reached = next;
            continue;
        }
        if (++links > max_links) return;  // the kernel refuses the path
        rest.insert(rest.begin(), target.begin(), target.end());
    }
}

}  // namespace lockstep::internal
