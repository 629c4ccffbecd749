// Devices: CUDA devices, virtual CPU devices, and the host itself.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

// Strong types for the numbers of devices and ranks, so that neither is confused with the other, with a shard or with a
// slot.

/// Number of an item of one kind, counted from 0.
template <class Tag>
class Index {
public:
    constexpr Index() = default;
    constexpr explicit Index(int number) : number_(number) {}
    constexpr int number() const { return number_; }
    /// The element for `index` of a vector with one element per item.
    template <class Vector>
    friend constexpr auto& at(Vector& of_each, Index index) {
        return of_each[static_cast<std::size_t>(index.number_)];
    }
    friend constexpr auto operator<=>(Index, Index) = default;

private:
    int number_ = 0;
};

/// Indices in [first, last), for loops; empty unless `last` is greater than `first`.
template <class Index>
class IndexRange {
public:
    /// A forward iterator.
    class Iterator {
    public:
        constexpr explicit Iterator(int number) : number_(number) {}
        constexpr Index operator*() const { return Index(number_); }
        constexpr Iterator& operator++() {
            ++number_;
            return *this;
        }
        friend constexpr bool operator==(Iterator, Iterator) = default;

    private:
        int number_;
    };

    constexpr IndexRange(int first, int last) : first_(first), last_((std::max)(first, last)) {}
    constexpr Iterator begin() const { return Iterator(first_); }
    constexpr Iterator end() const { return Iterator(last_); }

private:
    int first_, last_;
};

/// A position in a list of devices (not Device::index(), which counts visible devices), and in lists with one element
/// per device, such as replicas.
using DeviceIndex = Index<struct DeviceTag>;
inline constexpr DeviceIndex first_device{};

/// One of the processes that train together.
using RankIndex = Index<struct RankTag>;
inline constexpr RankIndex rank_0{};

/// Kind of a device.
enum class DeviceKind : std::uint8_t { cpu, cuda };

/// Names one device. `cuda:i` and `cpu:i` obey one contract (in-order streams, events, stream-ordered memory, copies
/// between devices). The host is the default device of new tensors: its work runs at once, on the calling thread.
class Device {
public:
    /// The host.
    constexpr Device() = default;
    static constexpr Device host() { return {}; }
    static constexpr Device cpu(int index) { return Device(DeviceKind::cpu, index); }
    static constexpr Device cuda(int index) { return Device(DeviceKind::cuda, index); }
    /// "cuda:0", "cpu:3", "host"; "cuda" and "cpu" mean index 0. Throws InvalidArgument for anything else. Does not
    /// check that the device exists; `require_visible` does.
    static Device parse(std::string_view text);

    constexpr DeviceKind kind() const { return kind_; }
    /// Position among the visible devices of its kind; -1 for the host.
    constexpr int index() const { return index_; }
    constexpr bool is_host() const { return index_ < 0; }
    std::string str() const;

    friend constexpr auto operator<=>(const Device&, const Device&) = default;

private:
    constexpr Device(DeviceKind kind, int index) : kind_(kind), index_(index) {}
    DeviceKind kind_ = DeviceKind::cpu;
    int index_ = -1;
};

/// Properties of a device.
struct DeviceInfo {
    std::string name;              ///< e.g. "NVIDIA H200", or the CPU's model name
    std::size_t total_memory = 0;  ///< bytes; for a logical device, its share of the GPU
    /// Bytes free now. Unknown for a GPU that this process has not used: the query needs a context, which takes device
    /// memory.
    std::optional<std::size_t> free_memory;
    int units = 0;                ///< streaming multiprocessors, or cores that this virtual device may use
    std::size_t cache_bytes = 0;  ///< size of the L2 cache of the GPU, or of one core
    int physical_index = 0;       ///< index known to the driver; logical devices of one GPU share it
    int compute_capability = 0;   ///< e.g. 90; 0 on the CPU
    std::string bus_id;           ///< PCI bus id of a GPU, the same in all processes: "0000:3b:00.0"; empty on the CPU
};

/// Number of devices of a kind that this process may use. GPUs are limited by CUDA_VISIBLE_DEVICES and
/// LOCKSTEP_DEVICES_PER_GPU. The number of virtual CPU devices is set by LOCKSTEP_CPU_DEVICES (default 2) and, on
/// machines without a CUDA driver, by a numeric CUDA_VISIBLE_DEVICES. A driver that is absent or too old means 0 GPUs,
/// never an exception. Malformed environment variables throw InvalidArgument.
int device_count(DeviceKind kind);
/// Divides the machine's cores among `count` virtual CPU devices, 1 to 64, and overrides LOCKSTEP_CPU_DEVICES. Call it
/// before anything that names, counts or uses CPU devices. Throws InvalidArgument if the devices have been counted
/// already and their number is not `count`.
void set_cpu_device_count(int count);
DeviceInfo device_info(Device device);
/// Reason why there are no CUDA devices ("no driver", "toolkit not built in", ...); empty if there are some.
std::string cuda_absence_reason();
/// Whether kernels on `reader` may read memory of `owner` directly. Does not create a context on an unused GPU.
bool peer_access(Device reader, Device owner);
/// Whether the host may access memory of `device` like its own; otherwise only copies reach it.
bool host_access(Device device);
/// Throws InvalidArgument if the device does not exist or is not visible; the message lists the visible devices.
void require_visible(Device device);

/// An ordered list of distinct devices of one kind.
class Devices {
public:
    /// All GPUs, or all virtual CPU devices if there is no GPU.
    static Devices visible();
    /// "all", or a list such as "cuda:0,cuda:1". Throws InvalidArgument for unknown, invisible or duplicate devices,
    /// mixed kinds and an empty list.
    static Devices parse(std::string_view text);
    /// Throws InvalidArgument for an empty list, duplicates, invisible devices, mixed kinds and the host.
    Devices(std::vector<Device> devices);  // NOLINT(google-explicit-constructor): {Device::cpu(0), Device::cpu(1)}
    /// Moving copies, so that no list becomes empty.
    Devices(const Devices&) = default;
    Devices& operator=(const Devices&) = default;
    Devices(std::initializer_list<Device> devices) : Devices(std::vector<Device>(devices)) {}

    int size() const { return static_cast<int>(devices_.size()); }
    Device operator[](int i) const { return devices_[static_cast<std::size_t>(i)]; }
    Device operator[](DeviceIndex index) const { return at(devices_, index); }
    IndexRange<DeviceIndex> indices() const { return {0, size()}; }
    /// All but the first.
    IndexRange<DeviceIndex> others() const { return {1, size()}; }
    auto begin() const { return devices_.begin(); }
    auto end() const { return devices_.end(); }
    DeviceKind kind() const { return devices_.front().kind(); }
    std::string str() const;

private:
    std::vector<Device> devices_;
};

}  // namespace lockstep
