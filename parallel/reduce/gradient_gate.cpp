#include "lockstep/parallel/reduce/gradient_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/parallel/reduce/update_tasks.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

TensorMeta f64_vector(std::int64_t elements) { return TensorMeta::contiguous(DType::f64, {elements}); }
constexpr const char* norms_tag = "norms of gradients";
const TensorMeta f64_scalar = TensorMeta::contiguous(DType::f64, {});

int group_of(const GradientClip& clip) {
    return std::visit([](const auto& some) { return some.group; }, clip);
}

}  // namespace

bool GateRules::has_norm() const {
    return std::any_of(clip.begin(), clip.end(),
                       [](const auto& some) { return std::holds_alternative<ClipGradNorm>(some); });
}

void GateRules::describe(Signature& signature) const {
    signature.add(skip_nonfinite).add(clip.size()).add(scaler != nullptr).add(norms);
    signature.add(std::string_view(rates ? rates->name() : ""));
    if (scaler) {
        const GradScalerOptions& rule = scaler->options();
        signature.add(rule.init_scale).add(rule.growth_factor).add(rule.backoff_factor).add(rule.growth_interval);
    }
    for (const GradientClip& some : clip) {
        signature.add(some.index()).add(group_of(some));
        if (const auto* norm = std::get_if<ClipGradNorm>(&some))
            signature.add(norm->max_norm).add(norm->norm_type).add(norm->error_if_nonfinite);
        else
            signature.add(std::get<ClipGradValue>(some).clip_value);
    }
}

void GateRules::check(const Optimizer& optimizer) const {
    for (const GradientClip& some : clip) {
        std::visit([](const auto& own) { own.check(); }, some);
        if (const int group = group_of(some); group < -1 || group >= optimizer.groups())
            throw InvalidArgument(
                fmt::format("step: gradients of group {} are to be clipped, but the optimizer has {}; expected a group "
                            "counted from 0, or -1 for all",
                            group, optimizer.groups()));
    }
}

GateEmitter::GateEmitter(Emitter& emitter, const ReductionMemory& reduction, Optimizer& optimizer,
                         std::vector<std::vector<Bucket>> parts)
    : emitter_(emitter), reduction_(reduction), optimizer_(optimizer), parts_(std::move(parts)), first_grain_{0} {
    for (const ArenaLayout& layout : emitter.memory().store()->parameters())
        first_grain_.push_back(first_grain_.back() + MeasureGradients::grains(layout.elements));
    const auto bytes = static_cast<std::size_t>(first_grain_.back()) * sizeof(double);
    const Devices& all = emitter.topology().devices;
    for (const DeviceIndex d : devices()) {
        // Grains without gradients stay 0.
        measures_.push_back(Buffer::zeroed(all[d], bytes, norms_tag));
        factors_.push_back(Buffer::zeroed(all[d], sizeof(double), norms_tag));
    }
    norm_ = Buffer::zeroed(all[0], sizeof(double), norms_tag);
}

void GateEmitter::emit(const GateRules& rules) {
    if (rules.may_skip())
        emit_judgement(emit_norm(std::numeric_limits<double>::infinity(), GradientRange::all_groups), false);
    if (rules.scaler) emit_unscaling(*rules.scaler);
    if (rules.rates)
        emitter_.copy(emitter_.topology().commit(first_device), emit_norm(2, GradientRange::all_groups),
                      emitter_.memory().control(first_device).mean_norm_ref());
    for (const GradientClip& clip : rules.clip) std::visit([this](const auto& some) { emit_clip(some); }, clip);
    if (rules.norms) emit_parameter_norms();
    if (rules.scaler) emit_new_scale(*rules.scaler);
}

void GateEmitter::emit_parameter_norms() {
    const auto sums_of = [&](int arena, std::int64_t begin, std::int64_t end, const std::shared_ptr<Buffer>& sums) {
        const std::int64_t first = first_grain_[static_cast<std::size_t>(arena)] + begin / norm_grain;
        return fixed(sums, static_cast<std::size_t>(first) * sizeof(ParameterNorms),
                     static_cast<std::size_t>(ceil_div(end - begin, norm_grain)) * sizeof(ParameterNorms));
    };
    const Topology& topology = emitter_.topology();
    Stream& root = topology.commit(first_device);
    const int gathered = emitter_.record(root);  // after the copies of the previous step, which read these sums
    std::vector<std::shared_ptr<Buffer>> sums;
    for (const DeviceIndex d : devices()) {
        sums.push_back(Buffer::zeroed(
            topology.devices[d], static_cast<std::size_t>(first_grain_.back()) * sizeof(ParameterNorms), norms_tag));
        const auto at_part = [&](const Bucket& part, DeviceIndex device) {
            return sums_of(part.arena, part.begin, part.end, at(sums, device));
        };
        Stream& stream = topology.commit(d);
        if (d != first_device) emitter_.wait(stream, gathered);
        for (const Bucket& part : at(parts_, d))
            emit_measurement(emitter_, d, optimizer_, part, update_memory(reduction_, optimizer_, d, part),
                             at_part(part, d));
        if (d == first_device) continue;
        emitter_.wait(root, stream);
        for (const Bucket& part : at(parts_, d)) emitter_.copy(root, at_part(part, d), at_part(part, first_device));
    }
    const std::vector<ArenaLayout>& arenas = emitter_.memory().store()->parameters();
    const OptimizerState& state = reduction_.state(optimizer_, first_device);
    for (std::size_t a = 0; a < arenas.size(); ++a) {
        const ArenaRange whole{0, arenas[a].elements, 0, static_cast<int>(arenas[a].segments.size())};
        const MemoryRef table = fixed(state.rows[a]), norms = fixed(state.norms[a]);
        const MemoryRef all = sums_of(static_cast<int>(a), 0, arenas[a].elements, sums[0]);
        emitter_.run_flat(
            root, first_device, make_operation(CombineNorms{whole, optimizer_.row_bytes()}),
            {{f64_vector(2 * ceil_div(whole.elements(), norm_grain)), bytes_meta(table.bytes)}, {all, table}},
            {{f64_vector(2 * std::int64_t{whole.last})}, {norms}});
        std::vector<MemoryRef> targets;
        for (const DeviceIndex d : devices()) targets.push_back(fixed(reduction_.state(optimizer_, d).norms[a]));
        emit_notify(norms, targets);
    }
}

MemoryRef GateEmitter::rows(DeviceIndex device, const Bucket& part) const {
    return fixed(reduction_.state(optimizer_, device).rows[static_cast<std::size_t>(part.arena)]);
}

GradientRange GateEmitter::meant(const Bucket& part, int group) const {
    return {{part.begin, part.end, part.first_segment, part.last_segment}, optimizer_.row_bytes(), group};
}

MemoryRef GateEmitter::measures(DeviceIndex device, const Bucket& part) const {
    const std::int64_t first =
        first_grain_[static_cast<std::size_t>(part.arena)] + part.begin / MeasureGradients::grain;
    return fixed(at(measures_, device), static_cast<std::size_t>(first) * sizeof(double),
                 static_cast<std::size_t>(MeasureGradients::grains(part.elements())) * sizeof(double));
}

MemoryRef GateEmitter::emit_norm(double order, int group) {
    Stream& root = emitter_.topology().commit(first_device);
    const int gathered = emitter_.record(root);  // after the copies of an earlier norm, which read these measures
    for (const DeviceIndex d : devices()) {
        Stream& stream = emitter_.topology().commit(d);
        const auto& parts = at(parts_, d);
        if (d != first_device) emitter_.wait(stream, gathered);
        for (const Bucket& part : parts) {
            const MemoryRef table = rows(d, part);
            const GradientRange range = meant(part, group);
            emitter_.run_flat(
                stream, d, make_operation(MeasureGradients{range, order}),
                {{reduction_.flat(part), bytes_meta(table.bytes)}, {reduction_.gradients(d, part), table}},
                {{f64_vector(MeasureGradients::grains(part.elements()))}, {measures(d, part)}});
        }
        if (d == first_device) continue;
        emitter_.wait(root, stream);
        for (const Bucket& part : parts) emitter_.copy(root, measures(d, part), measures(first_device, part));
    }
    emitter_.run_flat(root, first_device, make_operation(CombineMeasures{order}),
                      {{f64_vector(first_grain_.back())}, {fixed(measures_[0])}}, {{f64_scalar}, {fixed(norm_)}});
    return fixed(norm_);
}

void GateEmitter::emit_notify(const MemoryRef& from, const std::vector<MemoryRef>& targets) {
    const int told = emitter_.record(emitter_.topology().commit(first_device));
    for (const DeviceIndex d : IndexRange<DeviceIndex>(1, static_cast<int>(targets.size()))) {
        Stream& stream = emitter_.topology().commit(d);
        emitter_.wait(stream, told);
        emitter_.copy(stream, from, at(targets, d));
    }
}

void GateEmitter::emit_judgement(const MemoryRef& norm, bool refuses) {
    Stream& root = emitter_.topology().commit(first_device);
    const MemoryRef agreed = emitter_.memory().control(first_device).agreed_ref();
    for (const DeviceIndex d : emitter_.topology().devices.others())  // they may still be copying the previous word
        emitter_.wait(root, emitter_.topology().commit(d));
    emitter_.run_flat(root, first_device, make_operation(CheckGradNorm{refuses}), {{f64_scalar}, {norm}},
                      {{bytes_meta(sizeof(StatusWord))}, {agreed}});
    std::vector<MemoryRef> targets;
    for (const DeviceIndex d : emitter_.topology().devices.indices())
        targets.push_back(emitter_.memory().control(d).agreed_ref());
    emit_notify(agreed, targets);
}

std::vector<MemoryRef> GateEmitter::factors() const {
    std::vector<MemoryRef> refs;
    for (const auto& memory : factors_) refs.push_back(fixed(memory));
    return refs;
}

MemoryRef GateEmitter::scale_on(const GradScaler& scaler, DeviceIndex device) const {
    return fixed(scaler.state_on(emitter_.topology().devices[device]));
}

void GateEmitter::emit_unscaling(const GradScaler& scaler) {
    const std::vector<MemoryRef> each = factors();
    for (const DeviceIndex d : devices())
        emitter_.run_flat(emitter_.topology().commit(d), d, make_operation(UnscaleFactor{}),
                          {{bytes_meta(sizeof(LossScale))}, {scale_on(scaler, d)}}, {{f64_scalar}, {at(each, d)}});
    emit_change(GradientRange::all_groups, &each,
                [](const GradientRange& range) { return make_operation(ScaleGradients{range}); });
}

void GateEmitter::emit_new_scale(const GradScaler& scaler) {
    const GradScalerOptions& rule = scaler.options();
    for (const DeviceIndex d : emitter_.topology().devices.indices())
        emitter_.run_flat(
            emitter_.topology().commit(d), d,
            make_operation(UpdateLossScale{rule.growth_factor, rule.backoff_factor, rule.growth_interval}), {},
            {{bytes_meta(sizeof(LossScale))}, {scale_on(scaler, d)}});
}

void GateEmitter::emit_clip(const ClipGradNorm& clip) {
    Stream& root = emitter_.topology().commit(first_device);
    const MemoryRef measured = emit_norm(clip.norm_type, clip.group);
    if (!reported_) emitter_.copy(root, measured, emitter_.memory().control(first_device).norm_ref());
    reported_ = true;
    if (clip.error_if_nonfinite) emit_judgement(measured, true);
    const std::vector<MemoryRef> each = factors();
    emitter_.run_flat(root, first_device, make_operation(ClipCoefficient{clip.max_norm}), {{f64_scalar}, {measured}},
                      {{f64_scalar}, {each[0]}});
    emit_notify(each[0], each);
    emit_change(clip.group, &each, [](const GradientRange& range) { return make_operation(ScaleGradients{range}); });
}

void GateEmitter::emit_clip(const ClipGradValue& clip) {
    emit_change(clip.group, nullptr, [&](const GradientRange& range) {
        return make_operation(ClampGradients{range, clip.clip_value});
    });
}

template <class Make>
void GateEmitter::emit_change(int group, const std::vector<MemoryRef>* factors, const Make& make) {
    for (const DeviceIndex d : devices())
        for (const Bucket& part : at(parts_, d)) {
            const MemoryRef table = rows(d, part);
            FlatOperands in;
            if (factors) in = {{f64_scalar}, {at(*factors, d)}};
            in.metas.push_back(bytes_meta(table.bytes));
            in.refs.push_back(table);
            const GradientRange range = meant(part, group);
            emitter_.run_flat(emitter_.topology().commit(d), d, make(range), std::move(in),
                              {{reduction_.flat(part)}, {reduction_.gradients(d, part)}});
        }
}

}  // namespace lockstep
