// Kernels: requests, creation and caching.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/kernels.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/internal/threads.h"
#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

void KernelRequest::want_contiguous(std::size_t input) {
    if (!has_in(input)) return;
    const bool batch = in[input].batch;
    if (in[input].opaque || !in[input].is_contiguous())
        in[input] = TensorMeta::contiguous(in[input].dtype, in[input].shape, batch);
}

bool KernelRequest::has_half_types() const {
    const auto is_half = [](const TensorMeta& meta) { return is_half_type(meta.dtype); };
    return std::any_of(in.begin(), in.end(), is_half) || std::any_of(out.begin(), out.end(), is_half);
}

void KernelRequest::want_all_contiguous() {
    for (std::size_t i = 0; i < in.size(); ++i) want_contiguous(i);
}

namespace {

const std::shared_ptr<const Operation>& reorder_operation() {
    static const auto* reorder = new std::shared_ptr<const Operation>(make_operation(Reorder{}));
    return *reorder;
}

/// Calls the factory; exceptions are prefixed with the name of the called function.
std::unique_ptr<Kernel> made_by(KernelTable::Factory factory, const Operation& operation, KernelRequest& request) {
    const auto named = [&](const std::exception& error) {
        const std::string_view text = error.what(), name = api_name(operation);
        return text.starts_with(name) ? std::string(text) : fmt::format("{}: {}", name, text);
    };
    try {
        return factory(operation, request);
    } catch (const InvalidEnvironment&) {
        throw;  // not a mistake of the caller
    } catch (const InvalidArgument& error) {
        throw InvalidArgument(named(error));
    } catch (const OutOfMemory& error) {
        throw OutOfMemory(named(error));
    } catch (const CommunicationError&) {
        throw;  // from ranks that choose algorithms together; more specific than the caller's name
    } catch (const std::exception& error) {
        throw DeviceError(named(error));
    }
}

}  // namespace

namespace {

/// Number of unused kernels that are kept. Kernels in use are kept by their users and do not count.
constexpr std::size_t max_idle = 1024;
/// Number of kernels created before unused ones are counted again.
constexpr std::size_t between_counts = 128;

/// Number of factories that this thread is inside of.
thread_local int making = 0;

/// Key of a cached kernel.
struct KernelKey {
    Signature signature;
};

/// A kernel, or the entry of one that a thread is creating.
struct Kept {
    std::shared_ptr<const Kernel> kernel;  ///< null until created; afterwards only `used` changes
    recycled::Vector<TensorMeta> in, out;
    bool failed = false;  ///< its factory threw: the entry is no longer in the table
    std::atomic<std::uint64_t> used{0};

    /// Changes the request to the one that the kernel was created for. Offsets are the caller's.
    void answer(KernelRequest& request) const {
        for (std::size_t i = 0; i < request.in.size(); ++i)
            if (!request.in[i].same_layout(in[i])) request.in[i] = in[i];
        for (std::size_t i = 0; i < request.out.size(); ++i) {
            if (request.out[i].same_layout(out[i])) continue;
            const std::int64_t offset = request.out[i].offset;
            request.out[i] = out[i];
            request.out[i].offset = offset;
        }
    }
};

}  // namespace

struct KernelTable::Impl {
    DeviceKind kind;
    struct Entry {
        Factory factory = nullptr;
        Supports supports = nullptr;
        Factory half_types = nullptr;
        std::atomic<bool> used = false;  ///< a kernel was created
    };
    std::unordered_map<std::type_index, Entry> entries;

    /// Null if there is no kernel for the operation with these attributes.
    Factory factory_of(const Operation& operation) const {
        const auto found = entries.find(typeid(operation));
        return found != entries.end() && found->second.factory && found->second.supports(operation)
                   ? found->second.factory
                   : nullptr;
    }

    /// `widened`: set if the kernel is an f32 kernel between conversions.
    std::unique_ptr<Kernel> made_for(const Operation& operation, Factory factory, KernelRequest& request,
                                     bool& widened) const {
        if (!request.has_half_types()) return made_by(factory, operation, request);
        const Factory own = entries.find(typeid(operation))->second.half_types;
        std::unique_ptr<Kernel> kernel = own != nullptr ? made_by(own, operation, request) : nullptr;
        if (kernel) return kernel;
        const Factory reorder = factory_of(*reorder_operation());
        const auto convert = [&](const TensorMeta& from, const TensorMeta& to) {
            KernelRequest conversion = request;
            conversion.in = {from};
            conversion.out = {to};
            auto made_conversion = made_by(reorder, *reorder_operation(), conversion);
            made_conversion->threads = request.threads;
            return made_conversion;
        };
        widened = true;
        return upcast_kernel(
            operation, request,
            [&](KernelRequest& wide) {
                wide.allow_tf32 = false;  // permitted for f32 operations only
                return made_by(factory, operation, wide);
            },
            convert);
    }

    /// The kernel for `key`, created or cached; null while a thread is creating it.
    std::shared_ptr<Kept> find(const std::string& key) {
        const std::shared_lock lock(mutex);
        const auto found = kept.find(key);
        if (found == kept.end() || !found->second->kernel) return nullptr;
        found->second->used.store(now.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
        return found->second;
    }

    /// Waits while another thread creates the kernel for `key`. Returns the kernel, or an empty entry: the caller
    /// creates the kernel and publishes it. A thread inside a factory never waits, because the other thread may wait
    /// for it; it creates a kernel that is not cached.
    std::shared_ptr<Kept> claim(const std::string& key) {
        auto fresh = std::make_shared<Kept>();
        std::unique_lock lock(mutex);
        for (;;) {
            const auto [place, added] = kept.try_emplace(key, fresh);
            if (added) return fresh;
            const std::shared_ptr<Kept> there = place->second;
            if (there->kernel) return there;
            if (making > 0) return fresh;
            changed.wait(lock, [&] { return there->kernel || there->failed; });
            if (there->kernel) return there;
        }
    }

    void publish(Kept& place, std::shared_ptr<const Kernel> kernel, const KernelRequest& request) {
        std::vector<std::shared_ptr<Kept>> dropped;  // destroyed without the lock
        {
            const std::scoped_lock lock(mutex);
            place.in = request.in;
            place.out = request.out;
            place.used = now.fetch_add(1, std::memory_order_relaxed);
            place.kernel = std::move(kernel);
            if (++made_since_count >= between_counts) dropped = drop_idle();
        }
        changed.notify_all();
    }

    void give_up(const std::string& key, const std::shared_ptr<Kept>& place) noexcept {
        {
            const std::scoped_lock lock(mutex);
            place->failed = true;
            const auto found = kept.find(key);
            if (found != kept.end() && found->second == place) kept.erase(found);
        }
        changed.notify_all();
    }

    /// With the lock: removes the least recently used kernels beyond `max_idle`.
    std::vector<std::shared_ptr<Kept>> drop_idle() {
        made_since_count = 0;
        std::vector<std::pair<std::uint64_t, const std::string*>> idle;
        for (const auto& [key, place] : kept)
            if (place->kernel && place->kernel.use_count() == 1) idle.emplace_back(place->used, &key);
        std::vector<std::shared_ptr<Kept>> dropped;
        if (idle.size() <= max_idle) return dropped;
        const std::size_t excess = idle.size() - max_idle;
        std::nth_element(idle.begin(), idle.begin() + static_cast<std::ptrdiff_t>(excess), idle.end());
        for (std::size_t i = 0; i < excess; ++i) {
            const auto found = kept.find(*idle[i].second);
            dropped.push_back(std::move(found->second));
            kept.erase(found);
        }
        return dropped;
    }

    std::shared_mutex mutex;              ///< never held while a kernel is created
    std::condition_variable_any changed;  ///< a kernel was created, or its factory threw
    std::unordered_map<std::string, std::shared_ptr<Kept>> kept;
    std::atomic<std::uint64_t> now{1};  ///< counts uses
    std::size_t made_since_count = 0;
};

KernelTable::KernelTable(DeviceKind kind) : impl_(std::make_shared<Impl>()) {
    impl_->kind = kind;
    if (kind == DeviceKind::cuda)
        lockstep_cuda_kernels(*this);
    else
        register_cpu_kernels(*this);
}

KernelTable& KernelTable::of(DeviceKind kind) {
    static auto* cpu = new KernelTable(DeviceKind::cpu);
    if (kind == DeviceKind::cpu) return *cpu;
    static auto* cuda = new KernelTable(DeviceKind::cuda);
    return *cuda;
}

void KernelTable::add(std::type_index operation, Factory factory, Supports supports) {
    Impl::Entry& entry = detail::content_of(impl_, "KernelTable").entries[operation];
    entry.factory = factory;
    entry.supports = supports;
}

void KernelTable::add_half_types(std::type_index operation, Factory factory) {
    detail::content_of(impl_, "KernelTable").entries[operation].half_types = factory;
}

bool KernelTable::has(const Operation& operation) const {
    return detail::content_of(impl_, "KernelTable").factory_of(operation) != nullptr;
}

std::shared_ptr<const Kernel> KernelTable::make(const Operation& operation, KernelRequest& request) {
    Impl& impl = detail::content_of(impl_, "KernelTable");
    Signature& key = per_thread<KernelKey>().signature;
    key.clear();
    key.add(reinterpret_cast<std::uintptr_t>(&typeid(operation)));
    operation.describe(key);
    const std::uint64_t hardware = backend_of(request.device).hardware(request.device.index());
    key.add(hardware).add(request.threads).add(request.deterministic).add(request.shards);
    key.add(request.convolution).add(request.allow_tf32);
    if (request.convolution == ConvAlgorithm::benchmark) key.add(AlgorithmChoices::current().version());
    key.add(request.in.size());
    for (const TensorMeta& meta : request.in) key.add(meta);
    for (const TensorMeta& meta : request.out) key.add(meta);

    if (const auto found = impl.find(key.bytes())) {
        found->answer(request);
        return found->kernel;
    }
    const Factory factory = impl.factory_of(operation);
    if (factory == nullptr)
        throw DeviceError(fmt::format("{}: no kernel for {} devices; expected one in their kernel table",
                                      call_and_operation(ApiScope::name(), operation.name()),
                                      impl.kind == DeviceKind::cuda ? "cuda" : "cpu"));
    const std::string own_key = key.bytes();  // the factory may ask for kernels itself
    const std::shared_ptr<Kept> place = impl.claim(own_key);
    if (place->kernel) {
        place->answer(request);
        return place->kernel;
    }
    bool widened = false;
    std::shared_ptr<const Kernel> shared;
    ++making;
    try {
        std::unique_ptr<Kernel> kernel = impl.made_for(operation, factory, request, widened);
        kernel->threads = request.threads;
        kernel->hardware = hardware;
        shared = std::move(kernel);
        if (!impl.entries.find(typeid(operation))->second.used.exchange(true)) process_exit::watch();
        impl.publish(*place, shared, request);
    } catch (...) {
        --making;
        impl.give_up(own_key, place);
        throw;
    }
    --making;
    if (widened && impl.kind == DeviceKind::cpu) warn_emulated(request);
    return shared;
}

std::shared_ptr<const Kernel> kernel_on(const Record& record, Device device) {
    if (record.kernel->hardware == backend_of(device).hardware(device.index())) return record.kernel;
    KernelRequest request = *record.asked;
    const Device traced_for = std::exchange(request.device, device);
    auto kernel = KernelTable::of(device.kind()).make(*record.operation, request);
    const auto alike = [](ListRef<TensorMeta> wanted, const std::vector<Operand>& given) {
        for (std::size_t i = 0; i < given.size(); ++i)
            if (given[i].buffer && !wanted[i].same_layout(given[i].meta)) return false;
        return true;
    };
    if (!alike(request.in, record.in) || !alike(request.out, record.out))
        throw DeviceError(fmt::format("{}: tensor layouts differ between {} and {}; expected devices of one kind",
                                      record.operation->name(), traced_for.str(), device.str()));
    return kernel;
}

}  // namespace lockstep
