// The library's own kernels as PTX, found by the names that programs launch them by.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/tests/ptx/machine.h"

namespace lockstep::ptx {

/// A mangled name without the hashes of unnamed namespaces, which depend on how a file was compiled.
std::string without_hashes(const std::string& mangled);

/// The PTX for compute capability 8.0 in an object of nvcc, which has it as text between zeros. Throws
/// std::runtime_error if it is not found.
std::string text_in_object(const std::string& object, const std::string& path);

/// Modules that share one memory. Launches of several threads run one after the other.
class LibraryKernels {
public:
    /// `paths` of PTX files, or of objects with PTX that is not compressed, are separated by commas. Throws
    /// std::runtime_error if one cannot be read.
    explicit LibraryKernels(const std::string& paths);

    struct Found {
        Machine* machine = nullptr;
        const Kernel* kernel = nullptr;
    };
    /// Throws std::runtime_error if no module has the kernel.
    Found find(const std::string& mangled);
    /// The one kernel whose mangled name contains all of the words.
    Found find_by_words(const std::vector<std::string>& words) const;
    /// Messages about instructions that the interpreter does not know, of all kernels.
    std::vector<std::string> unknown() const;
    std::size_t kernel_count() const { return kernels_.size(); }

    struct Allocation {
        const void* begin;
        std::size_t bytes;
        auto operator<=>(const Allocation&) const = default;
    };
    using Allocations = std::shared_ptr<const std::vector<Allocation>>;
    /// Runs a kernel that may touch these allocations, which do not overlap.
    Report launch(const Found& found, const std::vector<std::byte>& parameters, const LaunchOptions& options,
                  const Allocations& allocations);

    /// Sums of all launches by kernel.
    const std::map<std::string, Counters>& totals() const { return totals_; }
    /// Number of launches of every kernel.
    std::map<std::string, std::uint64_t> launches() const;

private:
    void make_known(const Allocations& allocations);

    struct Loaded {
        Loaded(std::string_view text, Memory& memory) : module(parse_module(text)), machine(module, memory) {}
        Module module;
        Machine machine;
    };
    Memory memory_;
    std::vector<std::unique_ptr<Loaded>> modules_;
    std::map<std::string, Found> kernels_;  ///< by names without hashes
    std::mutex mutex_;
    std::unordered_map<std::string, Found> found_;  ///< by mangled names that were looked up
    Allocations last_;                              ///< those of the last launch
    std::vector<Allocation> known_;                 ///< the same, by address
    std::map<std::string, Counters> totals_;
};

}  // namespace lockstep::ptx
