#include "lockstep/ops/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "lockstep/ops/adadelta.h"
#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/adamax.h"
#include "lockstep/ops/asgd.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/lars.h"
#include "lockstep/ops/nadam.h"
#include "lockstep/ops/radam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/rprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

// Allowed options of the library's optimizers.

namespace {

/// Checks the options of one optimizer.
class OptionCheck {
public:
    explicit OptionCheck(const char* optimizer) : optimizer_(optimizer) {}
    void not_negative(const char* name, double value) const {
        if (!(value >= 0)) fail("{}: invalid {} ({}); expected 0 or more", name, value);
    }
    /// Decay of a moving average.
    void below_one(const char* name, double value) const {
        if (!(value >= 0 && value < 1)) fail("{}: invalid {} ({}); expected at least 0 and below 1", name, value);
    }

    void nesterov(bool wanted, double momentum, double dampening) const {
        if (wanted && (momentum <= 0 || dampening != 0))
            throw InvalidArgument(
                fmt::format("{}: Nesterov momentum requires a momentum and zero dampening; expected momentum > 0 and "
                            "dampening = 0",
                            optimizer_));
    }

private:
    void fail(const char* text, const char* name, double value) const {
        throw InvalidArgument(fmt::format(fmt::runtime(text), optimizer_, name, value));
    }
    const char* optimizer_;
};

template <class Options>
void check_adam(const char* name, const Options& options) {
    const OptionCheck check(name);
    check.not_negative("lr", options.lr);
    check.below_one("betas.0", options.betas[0]);
    check.below_one("betas.1", options.betas[1]);
    check.not_negative("eps", options.eps);
    check.not_negative("weight_decay", options.weight_decay);
}

}  // namespace

void SgdOptions::check() const {
    const OptionCheck check("SGD");
    check.not_negative("lr", lr);
    check.not_negative("momentum", momentum);
    check.not_negative("weight_decay", weight_decay);
    check.nesterov(nesterov, momentum, dampening);
}

void AdamOptions::check() const { check_adam("Adam", *this); }

void AdamWOptions::check() const { check_adam("AdamW", *this); }

void AdamaxOptions::check() const { check_adam("Adamax", *this); }

void RAdamOptions::check() const { check_adam("RAdam", *this); }

void NAdamOptions::check() const {
    check_adam("NAdam", *this);
    OptionCheck("NAdam").not_negative("momentum_decay", momentum_decay);
}

void RpropOptions::check() const {
    OptionCheck("Rprop").not_negative("lr", lr);
    if (!(etas[0] > 0 && etas[0] < 1 && etas[1] > 1))
        throw InvalidArgument(
            fmt::format("Rprop: invalid etas ({}, {}); expected 0 < etas[0] < 1 < etas[1]", etas[0], etas[1]));
}

void AsgdOptions::check() const {
    const OptionCheck check("ASGD");
    check.not_negative("lr", lr);
    check.not_negative("weight_decay", weight_decay);
}

void LarsOptions::check() const {
    const OptionCheck check("LARS");
    check.not_negative("lr", lr);
    check.not_negative("momentum", momentum);
    check.not_negative("weight_decay", weight_decay);
    check.not_negative("trust_coefficient", trust_coefficient);
    check.not_negative("eps", eps);
    check.nesterov(nesterov, momentum, dampening);
}

void LambOptions::check() const { check_adam("LAMB", *this); }

void AdadeltaOptions::check() const {
    const OptionCheck check("Adadelta");
    check.not_negative("lr", lr);
    check.not_negative("rho", rho);
    check.not_negative("eps", eps);
    check.not_negative("weight_decay", weight_decay);
    if (rho > 1) throw InvalidArgument(fmt::format("Adadelta: invalid rho ({}); expected [0, 1]", rho));
}

void RmspropOptions::check() const {
    const OptionCheck check("RMSprop");
    check.not_negative("lr", lr);
    check.not_negative("alpha", alpha);
    check.not_negative("eps", eps);
    check.not_negative("weight_decay", weight_decay);
    check.not_negative("momentum", momentum);
}

void AdagradOptions::check() const {
    const OptionCheck check("Adagrad");
    check.not_negative("lr", lr);
    check.not_negative("lr_decay", lr_decay);
    check.not_negative("weight_decay", weight_decay);
    check.not_negative("initial_accumulator_value", initial_accumulator_value);
    check.not_negative("eps", eps);
}

namespace {

/// Memory as a flat tensor, for apply().
Tensor over(const std::shared_ptr<Buffer>& buffer, DType dtype, std::int64_t elements) {
    return tensor_over(buffer, TensorMeta::contiguous(dtype, {elements}));
}

std::shared_ptr<Buffer> zero_state(Device device, std::size_t bytes) {
    Stream& stream = Stream::of(device);
    auto memory = Buffer::allocate(stream, bytes, "optimizer state");
    stream.fill(memory->data(), 0, memory->bytes());
    return memory;
}

/// Whether one of the names is `name` or, if that is a module, a tensor in it.
bool are_in(const std::vector<std::string>& names, const std::string& name) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& own) { return own == name || own.starts_with(name + "."); });
}

/// Calls `visit` with every parameter of a store.
template <class Visit>
void for_each_parameter(const ParameterStore& store, Visit&& visit) {
    for (std::size_t a = 0; a < store.parameters().size(); ++a)
        for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i)
            visit(ParameterId{static_cast<int>(a), static_cast<int>(i)}, store.parameters()[a].segments[i]);
}

double read(const OptionsLayout::Setting& setting, const std::vector<std::byte>& options) {
    const std::byte* at = options.data() + setting.offset;
    if (setting.is_flag) return *at != std::byte{0} ? 1 : 0;
    double value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
}

void write(const OptionsLayout::Setting& setting, double value, std::vector<std::byte>& options) {
    std::byte* at = options.data() + setting.offset;
    if (setting.is_flag)
        *at = value != 0 ? std::byte{1} : std::byte{0};
    else
        std::memcpy(at, &value, sizeof value);
}

/// Options as bytes; padding is 0, so that equal options have equal bytes.
std::vector<std::byte> bytes_of(const void* options, const OptionsLayout& layout) {
    std::vector<std::byte> bytes(layout.bytes);
    const auto* from = static_cast<const std::byte*>(options);
    for (const OptionsLayout::Setting& setting : layout.settings)
        std::memcpy(bytes.data() + setting.offset, from + setting.offset,
                    setting.is_flag ? sizeof(bool) : sizeof(double));
    return bytes;
}

}  // namespace

OptimizedParameters::OptimizedParameters(const std::vector<NamedTensor>& tensors)
    : store(ParameterStore::of(tensors)), part(std::in_place) {
    std::map<const TensorImpl*, ParameterId> known;
    for_each_parameter(*store, [&](ParameterId id, const ArenaSegment& segment) {
        known.emplace(store->tensor(segment).impl().get(), id);
    });
    for (const NamedTensor& named : tensors)
        if (named.is_parameter) (*part)[known.at(named.member->tensor().impl().get())].push_back(named.name);
}

Optimizer::Optimizer(const OptimizedParameters& parameters, const OptionsLayout& layout, const void* options)
    : store_(parameters.store), layout_(layout) {
    if (!store_) throw InvalidArgument("optimizer constructor: the parameter store is null; expected that of a model");
    layout_.check(options);
    groups_.push_back(bytes_of(options, layout_));
    for (const ArenaLayout& arena : store_->parameters())
        group_of_.emplace_back(arena.segments.size(), parameters.part ? no_group : 0);
    if (parameters.part) part_names_ = *parameters.part;
    for (const auto& [id, names] : part_names_)
        group_of_[static_cast<std::size_t>(id.arena)][static_cast<std::size_t>(id.number)] = 0;
    static std::atomic<std::uint64_t> made{0};
    id_ = ++made;  // 0 means no optimizer
    const OneThreadAtATime::Use use(store_->one_thread(), "optimizer constructor");
    store_->attach_optimizer(id_, *this);
}

Optimizer::~Optimizer() { store_->detach_optimizer(id_); }

// ---- groups -----------------------------------------------------------------------------------------------------

bool Optimizer::matches(ParameterId parameter, const std::string& wanted) const {
    if (!updates(parameter)) return false;
    const auto own = part_names_.find(parameter);
    return are_in(store_->segment(parameter).names, wanted) ||
           (own != part_names_.end() && are_in(own->second, wanted));
}

int Optimizer::add_group(const std::vector<std::string>& names, const void* options) {
    const OneThreadAtATime::Use use(store_->one_thread(), "add_group");
    layout_.check(options);
    const int group = groups();
    auto moved = group_of_;
    for (const std::string& wanted : names) {
        bool found = false;
        for_each_parameter(*store_, [&](ParameterId id, const ArenaSegment&) {
            if (!matches(id, wanted)) return;
            moved[static_cast<std::size_t>(id.arena)][static_cast<std::size_t>(id.number)] = group;
            found = true;
        });
        if (!found)
            throw InvalidArgument(fmt::format(
                "{}: no parameter or module is called {}; expected names as in named_tensors()", name(), wanted));
    }
    group_of_ = std::move(moved);
    groups_.push_back(bytes_of(options, layout_));
    ++version_;
    return group;
}

void Optimizer::check_group(int group) const {
    if (group < 0 || group >= groups())
        throw InvalidArgument(
            fmt::format("{}: no group {}; expected a group below {} (add_group creates one)", name(), group, groups()));
}

const void* Optimizer::options_of(int group) const {
    check_group(group);
    return groups_[static_cast<std::size_t>(group)].data();
}

void Optimizer::set_options_of(int group, const void* options) {
    const OneThreadAtATime::Use use(store_->one_thread(), "set_options");
    check_group(group);
    layout_.check(options);
    groups_[static_cast<std::size_t>(group)] = bytes_of(options, layout_);
    ++version_;
}

const OptionsLayout::Setting& Optimizer::find(std::string_view wanted) const {
    const auto found = std::find_if(layout_.settings.begin(), layout_.settings.end(),
                                    [&](const auto& setting) { return setting.name == wanted; });
    if (found == layout_.settings.end())
        throw InvalidArgument(fmt::format("{}: unknown setting {}; expected one of {}", name(), wanted,
                                          fmt::join(setting_names(), ", ")));
    return *found;
}

double Optimizer::setting(std::string_view wanted, int group) const {
    check_group(group);
    return read(find(wanted), groups_[static_cast<std::size_t>(group)]);
}

void Optimizer::set_setting(std::string_view wanted, double value, int group) {
    const OneThreadAtATime::Use use(store_->one_thread(), "optimizer settings");
    if (setting(wanted, group) == value) return;
    std::vector<std::byte> options = groups_[static_cast<std::size_t>(group)];
    write(find(wanted), value, options);
    layout_.check(options.data());
    groups_[static_cast<std::size_t>(group)] = std::move(options);
    ++version_;
}

std::vector<std::string> Optimizer::setting_names() const {
    std::vector<std::string> names;
    for (const auto& setting : layout_.settings) names.push_back(setting.name);
    return names;
}

void Optimizer::set_all(const std::vector<std::map<std::string, double>>& values) {
    const OneThreadAtATime::Use use(store_->one_thread(), "optimizer settings");
    if (values.size() != groups_.size())
        throw InvalidArgument(
            fmt::format("{}: settings of {} parameter groups; expected {}", name(), values.size(), groups_.size()));
    auto groups = groups_;
    for (std::size_t group = 0; group < groups.size(); ++group) {
        if (values[group].size() != layout_.settings.size())
            throw InvalidArgument(fmt::format("{}: {} settings in group {}; expected {}", name(), values[group].size(),
                                              group, layout_.settings.size()));
        for (const auto& [wanted, value] : values[group]) write(find(wanted), value, groups[group]);
        layout_.check(groups[group].data());
    }
    groups_ = std::move(groups);
    ++version_;
}

std::vector<Tensor> Optimizer::parameters(int group) const {
    if (group != -1) check_group(group);
    std::vector<Tensor> found;
    for_each_parameter(*store_, [&](ParameterId id, const ArenaSegment& segment) {
        if (updates(id) && (group == -1 || group_of(id) == group)) found.push_back(store_->tensor(segment));
    });
    return found;
}

void Optimizer::note_initial_lr() {
    for (int group = static_cast<int>(initial_lr_.size()); group < groups(); ++group) initial_lr_.push_back(lr(group));
}

const std::string& Optimizer::program_key() const {
    if (program_key_of_ == version_) return program_key_;
    program_key_.clear();
    for (const std::string& state : states()) program_key_ += state + ' ';
    program_key_ += counts_updates() ? '1' : '0';
    program_key_of_ = version_;
    return program_key_;
}

std::vector<std::byte> Optimizer::rows(int arena) const {
    const auto a = static_cast<std::size_t>(arena);
    const std::vector<ArenaSegment>& segments = store_->parameters()[a].segments;
    std::vector<std::byte> bytes(segments.size() * row_bytes());
    for (std::size_t i = 0; i < segments.size(); ++i) {
        const int group = group_of_[a][i];
        const bool own = group != no_group;
        ParameterRow row;
        row.begin = segments[i].begin;
        row.end = segments[i].end;
        row.trainable = own && store_->tensor(segments[i]).requires_grad() ? 1 : 0;
        row.counts = own && counts(group) ? 1 : 0;
        row.group = group;
        std::byte* begin = bytes.data() + i * row_bytes();
        std::memcpy(begin, &row, sizeof row);
        std::memcpy(begin + sizeof row, groups_[static_cast<std::size_t>(own ? group : 0)].data(), layout_.bytes);
    }
    return bytes;
}

// ---- state and updates ------------------------------------------------------------------------------------------

OptimizerState& Optimizer::state_on(Device device, const std::vector<std::int64_t>& elements) {
    const std::vector<ArenaLayout>& arenas = store_->parameters();
    // On the arena's device: arenas of a plain model may be on several devices.
    const std::vector<Replica>& replicas = store_->replicas();
    const auto replica =
        std::find_if(replicas.begin(), replicas.end(), [&](const Replica& one) { return one.device == device; });
    const auto place = [&](std::size_t arena) { return replica->parameters[arena]->device(); };
    OptimizerState* state = nullptr;
    for (auto& [known, found] : states_)
        if (known == device) state = &found;
    if (!state) {
        OptimizerState fresh;
        for (std::size_t a = 0; a < arenas.size(); ++a)
            fresh.rows.push_back(zero_state(place(a), arenas[a].segments.size() * row_bytes()));
        state = &states_.emplace_back(device, std::move(fresh)).second;
    }
    if (state->made_for == version_) return *state;
    if (needs_norms())
        for (std::size_t a = state->norms.size(); a < arenas.size(); ++a)
            state->norms.push_back(zero_state(place(a), arenas[a].segments.size() * sizeof(ParameterNorms)));
    for (const std::string& wanted : states()) {
        auto& memory = state->elements[wanted];
        for (std::size_t a = memory.size(); a < arenas.size(); ++a)
            memory.push_back(zero_state(place(a), static_cast<std::size_t>(elements[a]) * size_of(arenas[a].dtype)));
    }
    state->made_for = version_;
    return *state;
}

void Optimizer::measure_range(const ArenaRange&, const UpdateOperands&, const Tensor&) const {}

void Optimizer::step() {
    const OneThreadAtATime::Use use(store_->one_thread(), "optimizer step");
    const ApiScope call("optimizer step");
    store_->require_members("optimizer step");
    if (store_->update_hook)
        store_->update_hook(*this);
    else
        step_plain();
}

void Optimizer::zero_grad() {
    const OneThreadAtATime::Use use(store_->one_thread(), "zero_grad");
    store_->require_members("zero_grad");
    for (const Tensor& parameter : parameters()) parameter.set_grad(Tensor());
}

void Optimizer::step_plain() {
    const NoGrad no_grad;
    const std::vector<Tensor> own = parameters();
    if (std::none_of(own.begin(), own.end(), [](const Tensor& parameter) { return parameter.grad().defined(); }))
        throw InvalidArgument(
            "optimizer step: no parameter has a gradient; expected backward() on a loss (a wrapper trains a copy, so "
            "the optimizer must be created for the wrapper)");
    Replica& replica = store_->replicas().front();
    store_->ensure_gradients(first_device);
    std::vector<std::int64_t> elements;
    for (const ArenaLayout& arena : store_->parameters()) elements.push_back(arena.elements);
    OptimizerState& state = state_on(store_->home(), elements);
    const bool settings_changed =
        state.settings_version != version_ || state.trainable_version != store_->trainable_version();
    for (std::size_t a = 0; a < store_->parameters().size(); ++a) {
        const ArenaLayout& arena = store_->parameters()[a];
        const auto bytes = static_cast<std::int64_t>(state.rows[a]->bytes());
        UpdateOperands whole{over(replica.gradients[a], arena.dtype, arena.elements),
                             over(replica.parameters[a], arena.dtype, arena.elements),
                             over(state.rows[a], DType::u8, bytes),
                             {}};
        for (const auto& [name, memory] : state.elements)
            whole.states.emplace(name, over(memory[a], arena.dtype, arena.elements));
        if (needs_norms())
            whole.norms = over(state.norms[a], DType::f64, 2 * static_cast<std::int64_t>(arena.segments.size()));
        if (settings_changed) {
            const std::vector<std::byte> fresh = rows(static_cast<int>(a));
            const auto* raw = reinterpret_cast<const std::uint8_t*>(fresh.data());
            const Tensor wanted = Tensor::from(std::span(raw, fresh.size()), {bytes}, state.rows[a]->device());
            apply_one(StoreRows{row_bytes()}, {wanted}, whole.rows);
        }
        std::vector<int> updated;
        for (std::size_t i = 0; i < arena.segments.size(); ++i) {
            const ArenaSegment& segment = arena.segments[i];
            const int index = static_cast<int>(i);
            if (!updates({static_cast<int>(a), index})) continue;
            const Tensor gradient = store_->tensor(segment).grad();
            if (!gradient.defined() || segment.begin == segment.end) continue;
            const ArenaRange range{segment.begin, segment.end, index, index + 1};
            const auto part = [&](const Tensor& tensor) { return tensor.slice(0, range.begin, range.end); };
            UpdateOperands operands{part(whole.gradients), part(whole.parameters), whole.rows, {}, whole.norms};
            for (const auto& [name, values] : whole.states) operands.states.emplace(name, part(values));
            operands.gradients.copy_(gradient.reshape({range.elements()}));
            if (needs_norms()) {
                const Tensor measures = Tensor::zeros({2 * ceil_div(range.elements(), norm_grain)}, DType::f64,
                                                      operands.gradients.device());
                measure_range(range, operands, measures);
                apply_one(CombineNorms{range, row_bytes()}, {measures, whole.rows}, whole.norms);
            }
            update_range(range, operands);
            store_->tensor(segment).impl()->storage->count_write();
            eager_reports::carry(operands.gradients, store_->tensor(segment));
            updated.push_back(index);
        }
        eager_reports::carry(whole.gradients, whole.rows);
        if (counts_updates()) apply_one(CountUpdates{row_bytes(), updated}, {}, whole.rows);
    }
    state.settings_version = version_;
    state.trainable_version = store_->trainable_version();
}

}  // namespace lockstep
