#include "lockstep/parallel/reduce/gradient_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lockstep/ops/internal/gradient_operations.h"
#include "lockstep/parallel/reduce/reducer.h"
#include "lockstep/runtime/error.h"

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
    signature.add(skip_nonfinite).add(clip.size());
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
                fmt::format("step: gradients of group {} are to be clipped, the optimizer has {}; "
                            "count from 0, or give -1 for all",
                            group, optimizer.groups()));
    }
}

GatePlacer::GatePlacer(EngineContext& context, Schedule& schedule, Optimizer& optimizer,
                       std::vector<std::vector<Bucket>> parts)
    : context_(context), schedule_(schedule), optimizer_(optimizer), parts_(std::move(parts)), first_grain_{0} {
    for (const ArenaLayout& layout : context.store->parameters())
        first_grain_.push_back(first_grain_.back() + MeasureGradients::grains(layout.elements));
    const auto bytes = static_cast<std::size_t>(first_grain_.back()) * sizeof(double);
    for (int d = 0; d < devices(); ++d) {
        // Grains that no gradient is measured for stay 0.
        measures_.push_back(Buffer::zeroed(context.devices[d], bytes, norms_tag));
        factors_.push_back(Buffer::zeroed(context.devices[d], sizeof(double), norms_tag));
    }
    norm_ = Buffer::zeroed(context.devices[0], sizeof(double), norms_tag);
}

void GatePlacer::place(const GateRules& rules) {
    if (rules.skip_nonfinite) judge(norm(std::numeric_limits<double>::infinity(), GradientRange::all_groups), false);
    for (const GradientClip& clip : rules.clip) std::visit([this](const auto& some) { place_clip(some); }, clip);
}

PlaceRef GatePlacer::gradients(int device, const Bucket& part) const {
    const auto arena = static_cast<std::size_t>(part.arena);
    const std::size_t size = size_of(context_.store->parameters()[arena].dtype);
    return fixed(context_.store->replicas()[static_cast<std::size_t>(device)].gradients[arena],
                 static_cast<std::size_t>(part.begin) * size, static_cast<std::size_t>(part.elements()) * size);
}

PlaceRef GatePlacer::rows(int device, const Bucket& part) const {
    const auto& memory = context_.state(optimizer_, device).rows[static_cast<std::size_t>(part.arena)];
    return fixed(memory, 0, memory->bytes());
}

PlaceRef GatePlacer::measures(int device, const Bucket& part) const {
    const std::int64_t first =
        first_grain_[static_cast<std::size_t>(part.arena)] + part.begin / MeasureGradients::grain;
    return fixed(measures_[static_cast<std::size_t>(device)], static_cast<std::size_t>(first) * sizeof(double),
                 static_cast<std::size_t>(MeasureGradients::grains(part.elements())) * sizeof(double));
}

PlaceRef GatePlacer::norm(double order, int group) {
    Stream& root = context_.commit(0);
    for (int d = 0; d < devices(); ++d) {
        Stream& stream = context_.commit(d);
        for (const Bucket& part : parts_[static_cast<std::size_t>(d)]) {
            const TensorMeta flat = TensorMeta::contiguous(
                context_.store->parameters()[static_cast<std::size_t>(part.arena)].dtype, {part.elements()});
            const PlaceRef table = rows(d, part);
            const GradientRange range{
                {part.begin, part.end, part.first_segment, part.last_segment}, optimizer_.row_bytes(), group};
            schedule_.run(
                stream, flat_task(context_, stream, d, make_operation(MeasureGradients{range, order}),
                                  {flat, TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(table.bytes)})},
                                  {gradients(d, part), table}, {f64_vector(MeasureGradients::grains(part.elements()))},
                                  {measures(d, part)}));
        }
        if (d == 0) continue;
        schedule_.wait(root, schedule_.record(stream));
        for (const Bucket& part : parts_[static_cast<std::size_t>(d)])
            schedule_.copy(root, {measures(d, part), measures(0, part), measures(d, part).bytes});
    }
    const PlaceRef result = fixed(norm_, 0, sizeof(double));
    schedule_.run(
        root, flat_task(context_, root, 0, make_operation(CombineMeasures{order}), {f64_vector(first_grain_.back())},
                        {fixed(measures_[0], 0, measures_[0]->bytes())}, {f64_scalar}, {result}));
    return result;
}

void GatePlacer::tell(const PlaceRef& from, const std::vector<PlaceRef>& targets) {
    const int told = schedule_.record(context_.commit(0));
    for (int d = 1; d < context_.devices.size() && d < static_cast<int>(targets.size()); ++d) {
        Stream& stream = context_.commit(d);
        schedule_.wait(stream, told);
        schedule_.copy(stream, {from, targets[static_cast<std::size_t>(d)], from.bytes});
    }
}

void GatePlacer::judge(const PlaceRef& norm, bool refuses) {
    Stream& root = context_.commit(0);
    const TensorMeta word = TensorMeta::contiguous(DType::u8, {sizeof(StatusWord)});
    const PlaceRef agreed = context_.control[0].agreed_place();
    for (int d = 1; d < context_.devices.size(); ++d)  // they may still be copying what was agreed on before
        schedule_.wait(root, schedule_.record(context_.commit(d)));
    schedule_.run(
        root, flat_task(context_, root, 0, make_operation(JudgeNorm{refuses}), {f64_scalar}, {norm}, {word}, {agreed}));
    std::vector<PlaceRef> targets;
    for (const ControlBlock& control : context_.control) targets.push_back(control.agreed_place());
    tell(agreed, targets);
}

void GatePlacer::place_clip(const ClipGradNorm& clip) {
    Stream& root = context_.commit(0);
    const PlaceRef measured = norm(clip.norm_type, clip.group);
    if (!reported_) schedule_.copy(root, {measured, context_.control[0].norm_place(), measured.bytes});
    reported_ = true;
    if (clip.error_if_nonfinite) judge(measured, true);
    std::vector<PlaceRef> factors;
    for (const auto& memory : factors_) factors.push_back(fixed(memory, 0, sizeof(double)));
    schedule_.run(root, flat_task(context_, root, 0, make_operation(ClipCoefficient{clip.max_norm}), {f64_scalar},
                                  {measured}, {f64_scalar}, {factors[0]}));
    tell(factors[0], factors);
    change(clip.group, &factors, [](const GradientRange& range) { return make_operation(ScaleGradients{range}); });
}

void GatePlacer::place_clip(const ClipGradValue& clip) {
    change(clip.group, nullptr, [&](const GradientRange& range) {
        return make_operation(ClampGradients{range, clip.clip_value});
    });
}

template <class Make>
void GatePlacer::change(int group, const std::vector<PlaceRef>* factors, const Make& make) {
    for (int d = 0; d < devices(); ++d) {
        Stream& stream = context_.commit(d);
        for (const Bucket& part : parts_[static_cast<std::size_t>(d)]) {
            const TensorMeta flat = TensorMeta::contiguous(
                context_.store->parameters()[static_cast<std::size_t>(part.arena)].dtype, {part.elements()});
            const PlaceRef table = rows(d, part);
            std::vector<TensorMeta> metas{TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(table.bytes)})};
            std::vector<PlaceRef> in{table};
            if (factors) {
                metas.insert(metas.begin(), f64_scalar);
                in.insert(in.begin(), (*factors)[static_cast<std::size_t>(d)]);
            }
            const GradientRange range{
                {part.begin, part.end, part.first_segment, part.last_segment}, optimizer_.row_bytes(), group};
            schedule_.run(stream, flat_task(context_, stream, d, make(range), metas, std::move(in), {flat},
                                            {gradients(d, part)}));
        }
    }
}

}  // namespace lockstep
