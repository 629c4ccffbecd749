// Kernels: how they are asked for, made and kept.
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/algorithm_choices.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/kernel_registration.h"
#include "lockstep/runtime/internal/public_call.h"
#include "lockstep/runtime/internal/widened_kernel.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

void KernelRequest::want_contiguous(std::size_t input) {
    if (!has_in(input)) return;
    const bool batch = in[input].batch;
    if (in[input].opaque || !in[input].is_contiguous())
        in[input] = TensorMeta::contiguous(in[input].dtype, in[input].shape, batch);
}

bool KernelRequest::has_short_floats() const {
    const auto is_short = [](const TensorMeta& meta) { return is_short_float(meta.dtype); };
    return std::any_of(in.begin(), in.end(), is_short) || std::any_of(out.begin(), out.end(), is_short);
}

void KernelRequest::want_all_contiguous() {
    for (std::size_t i = 0; i < in.size(); ++i) want_contiguous(i);
}

namespace {

const std::shared_ptr<const Operation>& reorder_operation() {
    static const auto* reorder = new std::shared_ptr<const Operation>(make_operation(Reorder{}));
    return *reorder;
}

/// Calls the factory; what it throws begins with the function that was called.
std::unique_ptr<Kernel> made_by(KernelTable::Factory factory, const Operation& operation, KernelRequest& request) {
    const auto named = [&](const std::exception& error) {
        const std::string_view text = error.what(), name = called(operation);
        return text.starts_with(name) ? std::string(text) : fmt::format("{}: {}", name, text);
    };
    try {
        return factory(operation, request);
    } catch (const InvalidArgument& error) {
        throw InvalidArgument(named(error));
    } catch (const OutOfMemory& error) {
        throw OutOfMemory(named(error));
    } catch (const CommunicationError&) {
        throw;  // of ranks that choose algorithms together; says more than who asked
    } catch (const std::exception& error) {
        throw DeviceError(named(error));
    }
}

}  // namespace

struct KernelTable::Impl {
    struct Made {
        std::shared_ptr<const Kernel> kernel;
        std::vector<TensorMeta> in, out;
    };
    DeviceKind kind;
    struct Entry {
        Factory factory = nullptr;
        Supports supports = nullptr;
        Factory short_floats = nullptr;
    };
    std::unordered_map<std::type_index, Entry> entries;

    /// Null where there is no kernel for the operation with its attributes.
    Factory factory_of(const Operation& operation) const {
        const auto found = entries.find(typeid(operation));
        return found != entries.end() && found->second.factory && found->second.supports(operation)
                   ? found->second.factory
                   : nullptr;
    }

    /// `widened`: set where the kernel is one for f32 between conversions.
    std::unique_ptr<Kernel> made_for(const Operation& operation, Factory factory, KernelRequest& request,
                                     bool& widened) const {
        if (!request.has_short_floats()) return made_by(factory, operation, request);
        const Factory own = entries.find(typeid(operation))->second.short_floats;
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
        return widened_kernel(
            operation, request, [&](KernelRequest& wide) { return made_by(factory, operation, wide); }, convert);
    }

    std::mutex mutex;
    std::unordered_map<std::string, Made> made;
    std::size_t room = 4096;  ///< kernels that may be kept before those that nobody uses go
};

KernelTable::KernelTable(DeviceKind kind) : impl_(std::make_shared<Impl>()) {
    impl_->kind = kind;
    if (kind == DeviceKind::cuda)
        register_cuda_kernels(*this);
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
    Impl::Entry& entry = impl_->entries[operation];
    entry.factory = factory;
    entry.supports = supports;
}

void KernelTable::add_short_floats(std::type_index operation, Factory factory) {
    impl_->entries[operation].short_floats = factory;
}

bool KernelTable::has(const Operation& operation) const { return impl_->factory_of(operation) != nullptr; }

std::shared_ptr<const Kernel> KernelTable::make(const Operation& operation, KernelRequest& request) {
    Signature key;
    key.add(std::string_view(typeid(operation).name()));
    operation.describe(key);
    const std::uint64_t hardware = backend_of(request.device).hardware(request.device.index());
    key.add(hardware).add(request.threads).add(request.deterministic).add(request.shards).add(request.convolution);
    if (request.convolution == ConvAlgorithm::benchmark) key.add(AlgorithmChoices::current().version());
    key.add(request.in.size());
    for (const TensorMeta& meta : request.in) key.add(meta);
    for (const TensorMeta& meta : request.out) key.add(meta);

    std::unique_lock lock(impl_->mutex);
    if (const auto found = impl_->made.find(key.bytes()); found != impl_->made.end()) {
        for (std::size_t i = 0; i < request.in.size(); ++i) {
            const std::int64_t offset = request.in[i].offset;
            const bool converted = !request.in[i].same_layout(found->second.in[i]);
            request.in[i] = found->second.in[i];
            if (!converted) request.in[i].offset = offset;
        }
        for (std::size_t i = 0; i < request.out.size(); ++i) {
            const std::int64_t offset = request.out[i].offset;
            request.out[i] = found->second.out[i];
            request.out[i].offset = offset;
        }
        return found->second.kernel;
    }
    if (impl_->made.size() >= impl_->room) {
        std::erase_if(impl_->made, [](const auto& entry) { return entry.second.kernel.use_count() == 1; });
        impl_->room = std::max<std::size_t>(4096, 2 * impl_->made.size());
    }
    const Factory factory = impl_->factory_of(operation);
    if (factory == nullptr)
        throw DeviceError(fmt::format("{}: there is no kernel for {} devices; add one to their kernel table",
                                      call_and_operation(PublicCall::name(), operation.name()),
                                      impl_->kind == DeviceKind::cuda ? "cuda" : "cpu"));
    bool widened = false;
    std::unique_ptr<Kernel> kernel = impl_->made_for(operation, factory, request, widened);
    kernel->threads = request.threads;
    kernel->hardware = hardware;
    std::shared_ptr<const Kernel> shared = std::move(kernel);
    impl_->made[key.bytes()] = {shared, request.in, request.out};
    lock.unlock();
    if (widened && impl_->kind == DeviceKind::cpu) tell_of_emulation(request);
    return shared;
}

std::shared_ptr<const Kernel> kernel_on(const Record& record, Device device) {
    if (record.kernel->hardware == backend_of(device).hardware(device.index())) return record.kernel;
    KernelRequest request = *record.asked;
    const Device traced_for = std::exchange(request.device, device);
    auto kernel = KernelTable::of(device.kind()).make(*record.operation, request);
    const auto alike = [](const std::vector<TensorMeta>& wanted, const std::vector<Operand>& given) {
        for (std::size_t i = 0; i < given.size(); ++i)
            if (given[i].buffer && !wanted[i].same_layout(given[i].meta)) return false;
        return true;
    };
    if (!alike(request.in, record.in) || !alike(request.out, record.out))
        throw DeviceError(fmt::format(
            "{} lays out its tensors in one way on {} and in another one on {}; train on devices of one kind",
            record.operation->name(), traced_for.str(), device.str()));
    return kernel;
}

}  // namespace lockstep
