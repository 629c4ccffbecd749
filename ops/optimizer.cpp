#include "lockstep/ops/optimizer.h"

#include <atomic>

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/runtime/internal/eager_reports.h"
#include "lockstep/runtime/internal/public_call.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

namespace {

/// Memory as a tensor, for apply().
Tensor over(const std::shared_ptr<Buffer>& buffer, DType dtype, std::int64_t elements) {
    if (!buffer) return Tensor();
    auto impl = std::make_shared<TensorImpl>();
    impl->storage = std::make_shared<Storage>();
    impl->storage->buffer = buffer;
    impl->meta = TensorMeta::contiguous(dtype, {elements});
    return Tensor(std::move(impl));
}

}  // namespace

Optimizer::Optimizer(std::shared_ptr<ParameterStore> store) : store_(std::move(store)) {
    static std::atomic<std::uint64_t> made{0};
    id_ = ++made;  // 0 stands for none
    const OneThreadAtATime::Use use(store_->one_thread(), "an optimizer is made");
    store_->enter_optimizer(id_, *this);
}

Optimizer::~Optimizer() { store_->leave_optimizer(id_); }

OptimizerState& Optimizer::state_on(Device device, const std::vector<std::int64_t>& elements) {
    OptimizerState* state = nullptr;
    for (auto& [known, found] : states_)
        if (known == device) state = &found;
    if (!state) {
        state = &states_.emplace_back(device, OptimizerState{}).second;
        state->momentum.resize(store_->parameters().size());
        for (const ArenaLayout& arena : store_->parameters()) {
            Stream& stream = Stream::of(device);
            state->segments.push_back(
                Buffer::allocate(stream, arena.segments.size() * sizeof(Segment), "optimizer state"));
            stream.fill(state->segments.back()->data(), 0, state->segments.back()->bytes());
        }
    }
    for (std::size_t a = 0; a < state->momentum.size(); ++a)
        if (has_momentum() && !state->momentum[a]) {
            Stream& stream = Stream::of(device);
            const auto bytes = static_cast<std::size_t>(elements[a]) * size_of(store_->parameters()[a].dtype);
            state->momentum[a] = Buffer::allocate(stream, bytes, "optimizer state");
            stream.fill(state->momentum[a]->data(), 0, state->momentum[a]->bytes());
        }
    return *state;
}

void Optimizer::step() {
    const OneThreadAtATime::Use use(store_->one_thread(), "optimizer step");
    const PublicCall call("optimizer step");
    if (store_->update_hook)
        store_->update_hook(*this);
    else
        step_plain();
}

void Optimizer::zero_grad() {
    const OneThreadAtATime::Use use(store_->one_thread(), "zero_grad");
    for (const ArenaLayout& arena : store_->parameters())
        for (const ArenaSegment& segment : arena.segments) store_->tensor(segment).set_grad(Tensor());
}

void Optimizer::step_plain() {
    const NoGrad no_tape;
    const Device device = store_->home();
    Replica& replica = store_->replicas().front();
    store_->need_gradients(0);
    std::vector<std::int64_t> elements;
    for (const ArenaLayout& arena : store_->parameters()) elements.push_back(arena.elements);
    OptimizerState& state = state_on(device, elements);
    for (std::size_t a = 0; a < store_->parameters().size(); ++a) {
        const ArenaLayout& arena = store_->parameters()[a];
        const auto bytes = static_cast<std::int64_t>(arena.segments.size() * sizeof(Segment));
        const Tensor table = over(state.segments[a], DType::u8, bytes);
        if (state.settings_version != settings_version() || state.trainable_version != store_->trainable_version()) {
            const std::vector<Segment> fresh = segments(static_cast<int>(a));
            const auto* raw = reinterpret_cast<const std::uint8_t*>(fresh.data());
            const Tensor wanted = Tensor::from(std::span(raw, static_cast<std::size_t>(bytes)), {bytes}, device);
            apply_one(StoreSegments(), {wanted}, table);
        }
        const Tensor gradients = over(replica.gradients[a], arena.dtype, arena.elements);
        std::vector<int> updated;
        for (std::size_t i = 0; i < arena.segments.size(); ++i) {
            const ArenaSegment& segment = arena.segments[i];
            const Tensor gradient = store_->tensor(segment).grad();
            if (!gradient.defined() || segment.begin == segment.end) continue;
            gradients.slice(0, segment.begin, segment.end).copy_(gradient.reshape({segment.end - segment.begin}));
            const int index = static_cast<int>(i);
            apply(update(segment.begin, segment.end, index, index + 1), {gradients, table},
                  {over(replica.parameters[a], arena.dtype, arena.elements),
                   over(state.momentum[a], arena.dtype, arena.elements)});
            store_->tensor(segment).impl()->storage->count_write();
            eager_reports::carry(gradients, store_->tensor(segment));
            updated.push_back(index);
        }
        eager_reports::carry(gradients, table);
        apply_one(MarkUpdated(updated), {}, table);
    }
    state.settings_version = settings_version();
    state.trainable_version = store_->trainable_version();
}

}  // namespace lockstep
