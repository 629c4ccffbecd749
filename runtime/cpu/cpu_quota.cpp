#include "lockstep/runtime/cpu/cpu_quota.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

namespace {

std::string first_line(const std::filesystem::path& file) {
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    return line;
}

std::optional<double> positive(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value <= 0) return std::nullopt;
    return static_cast<double>(value);
}

std::optional<double> quotient(std::optional<double> quota, std::optional<double> period) {
    return quota && period ? std::optional(*quota / *period) : std::nullopt;
}

/// "200000 100000"; "max 100000" means no limit.
std::optional<double> limit_of_version_2(const std::filesystem::path& group) {
    const std::string line = first_line(group / "cpu.max");
    const auto space = line.find(' ');
    if (space == std::string::npos) return std::nullopt;
    return quotient(positive(std::string_view(line).substr(0, space)),
                    positive(std::string_view(line).substr(space + 1)));
}

/// A quota of -1 means no limit.
std::optional<double> limit_of_version_1(const std::filesystem::path& group) {
    return quotient(positive(first_line(group / "cpu.cfs_quota_us")),
                    positive(first_line(group / "cpu.cfs_period_us")));
}

bool lists(std::string_view list, std::string_view name) {
    for (std::size_t begin = 0; begin <= list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size());
        if (list.substr(begin, end - begin) == name) return true;
        begin = end + 1;
    }
    return false;
}

struct Hierarchy {
    std::filesystem::path mount, group;  ///< the group's directory below the mount point
    bool second = false;
};

/// mountinfo writes blanks and backslashes as "\040" and "\134"; systemd's units have backslashes in their names.
std::string unescaped(std::string_view text) {
    std::string plain;
    for (; !text.empty(); text.remove_prefix(1)) {
        unsigned char code = 0;
        if (text[0] == '\\' && text.size() > 3 &&
            std::from_chars(text.data() + 1, text.data() + 4, code, 8).ptr == text.data() + 4) {
            plain += static_cast<char>(code);
            text.remove_prefix(3);
        } else {
            plain += text[0];
        }
    }
    return plain;
}

/// `own` relative to the mounted part of the hierarchy; a container may see only its own part.
std::filesystem::path below(const std::string& mounted, const std::string& own) {
    if (mounted == "/" || mounted.empty()) return std::filesystem::path(own).relative_path();
    if (own.starts_with(mounted) && (own.size() == mounted.size() || own[mounted.size()] == '/'))
        return std::filesystem::path(own.substr(mounted.size())).relative_path();
    return {};
}

std::vector<Hierarchy> hierarchies(const std::filesystem::path& root) {
    std::optional<std::string> own_2, own_1;
    std::ifstream groups(root / "proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/user.slice" or "0::/user.slice"
        const auto first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        if (controllers.empty())
            own_2 = line.substr(second + 1);
        else if (lists(controllers, "cpu"))
            own_1 = line.substr(second + 1);
    }
    std::vector<Hierarchy> found;
    std::ifstream mounts(root / "proc/self/mountinfo");
    for (std::string line; std::getline(mounts, line);) {
        const auto dash = line.find(" - ");
        if (dash == std::string::npos) continue;
        std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
        std::string word, mounted, at, type, source, options;
        before >> word >> word >> word >> mounted >> at;
        after >> type >> source >> options;
        const bool second = type == "cgroup2";
        if (!second && !(type == "cgroup" && lists(options, "cpu"))) continue;
        if (const auto& own = second ? own_2 : own_1)
            found.push_back(
                {root / std::filesystem::path(unescaped(at)).relative_path(), below(unescaped(mounted), *own), second});
    }
    return found;
}

}  // namespace

std::optional<double> cpu_quota(const std::filesystem::path& root) {
    std::optional<double> least;
    for (const Hierarchy& hierarchy : hierarchies(root)) {
        std::filesystem::path group = hierarchy.group;
        for (bool more = true; more;) {
            const std::filesystem::path directory = group.empty() ? hierarchy.mount : hierarchy.mount / group;
            const auto limit = hierarchy.second ? limit_of_version_2(directory) : limit_of_version_1(directory);
            if (limit) least = std::min(least.value_or(*limit), *limit);
            more = !group.empty();
            group = group.parent_path();
        }
    }
    return least;
}

int cores_within(std::optional<double> quota, int cores) {
    return quota ? std::clamp(static_cast<int>(std::ceil(std::min(*quota, 1e6))), 1, cores) : cores;
}

}  // namespace lockstep
