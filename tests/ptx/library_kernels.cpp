#include "lockstep/tests/ptx/library_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <stdexcept>
#include <string_view>

namespace lockstep::ptx {

std::string without_hashes(const std::string& mangled) {
    // 46_GLOBAL__N__08d5abae_13_optimizers_cu_61211f32
    static const std::regex unnamed("_GLOBAL__N__[0-9a-f]{8}_([0-9]+_[A-Za-z0-9_]+?_cu)_[0-9a-f]{8}");
    return std::regex_replace(mangled, unnamed, "_GLOBAL__N__$1");
}

std::string text_in_object(const std::string& object, const std::string& path) {
    const std::string_view target = "\n.target sm_80\n";
    const std::size_t found = object.find(target);
    if (found == std::string::npos) throw std::runtime_error(fmt::format("no PTX for sm_80 in {}", path));
    const std::size_t begin = object.rfind('\0', found) + 1;
    return object.substr(begin, object.find('\0', found) - begin);
}

LibraryKernels::LibraryKernels(const std::string& paths) {
    for (std::size_t begin = 0; begin < paths.size();) {
        const std::size_t end = std::min(paths.find(',', begin), paths.size());
        const std::string path = paths.substr(begin, end - begin);
        begin = end + 1;
        std::ifstream file(path, std::ios::binary);
        if (!file) throw std::runtime_error(fmt::format("cannot read {}", path));
        std::string text(std::istreambuf_iterator<char>(file), {});
        if (text.starts_with("\177ELF")) text = text_in_object(text, path);
        Loaded& loaded = *modules_.emplace_back(std::make_unique<Loaded>(text, memory_));
        // Modules may have the same instantiation of a template.
        for (const auto& [name, kernel] : loaded.module.kernels)
            kernels_.try_emplace(without_hashes(name), Found{&loaded.machine, &kernel});
    }
}

LibraryKernels::Found LibraryKernels::find(const std::string& mangled) {
    const std::scoped_lock lock(mutex_);
    if (const auto known = found_.find(mangled); known != found_.end()) return known->second;
    const auto found = kernels_.find(without_hashes(mangled));
    if (found == kernels_.end()) throw std::runtime_error(fmt::format("no PTX of the kernel {}", mangled));
    return found_[mangled] = found->second;
}

LibraryKernels::Found LibraryKernels::find_by_words(const std::vector<std::string>& words) const {
    Found result;
    for (const auto& [name, found] : kernels_) {
        const bool matches = std::all_of(words.begin(), words.end(), [&, own = &name](const std::string& word) {
            return own->find(word) != std::string::npos;
        });
        if (!matches) continue;
        if (result.kernel != nullptr)
            throw std::runtime_error(fmt::format("{} and {} match", result.kernel->name, found.kernel->name));
        result = found;
    }
    if (result.kernel == nullptr) throw std::runtime_error(fmt::format("no kernel matches {}", fmt::join(words, " ")));
    return result;
}

std::vector<std::string> LibraryKernels::unknown() const {
    std::vector<std::string> all;
    for (const auto& [name, found] : kernels_)
        all.insert(all.end(), found.kernel->unknown.begin(), found.kernel->unknown.end());
    return all;
}

std::map<std::string, std::uint64_t> LibraryKernels::launches() const {
    std::map<std::string, std::uint64_t> all;
    for (const auto& [name, found] : kernels_) {
        const auto ran = totals_.find(found.kernel->name);
        all[name] = ran == totals_.end() ? 0 : ran->second.launches;
    }
    return all;
}

// An allocation that is as large as an earlier one at its address keeps the history of that one, which is of earlier
// launches and so in order with all that follows.
void LibraryKernels::make_known(const Allocations& allocations) {
    if (allocations == last_) return;
    std::vector<Allocation> wanted = *allocations, removed, added;
    std::sort(wanted.begin(), wanted.end());
    std::set_difference(known_.begin(), known_.end(), wanted.begin(), wanted.end(), std::back_inserter(removed));
    std::set_difference(wanted.begin(), wanted.end(), known_.begin(), known_.end(), std::back_inserter(added));
    for (const Allocation& each : removed) memory_.remove(each.begin);
    for (const Allocation& each : added) memory_.add(each.begin, each.bytes);
    known_ = std::move(wanted);
    last_ = allocations;
}

Report LibraryKernels::launch(const Found& found, const std::vector<std::byte>& parameters,
                              const LaunchOptions& options, const Allocations& allocations) {
    const std::scoped_lock lock(mutex_);
    make_known(allocations);
    Report report = found.machine->launch(*found.kernel, parameters, options);
    totals_[found.kernel->name].add(report.counters);
    return report;
}

}  // namespace lockstep::ptx
