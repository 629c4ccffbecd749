#include <fmt/format.h>

#include "lockstep/ops/internal/operations.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

void check(const SgdOptions& options) {
    const auto not_negative = [](const char* name, double value) {
        if (!(value >= 0)) throw InvalidArgument(fmt::format("SGD: {} {} must not be negative", name, value));
    };
    not_negative("lr", options.lr);
    not_negative("momentum", options.momentum);
    not_negative("weight_decay", options.weight_decay);
    if (options.nesterov && (options.momentum <= 0 || options.dampening != 0))
        throw InvalidArgument("SGD: Nesterov momentum requires a momentum and zero dampening");
}

bool matches(const ArenaSegment& segment, const std::string& name) {
    for (const std::string& own : segment.names)
        if (own == name || own.starts_with(name + ".")) return true;
    return false;
}

}  // namespace

SGD::SGD(std::shared_ptr<ParameterStore> store, SgdOptions options) : Optimizer(std::move(store)), groups_{options} {
    check(options);
    for (const ArenaLayout& arena : this->store()->parameters()) group_of_.emplace_back(arena.segments.size(), 0);
}

int SGD::add_group(const std::vector<std::string>& names, SgdOptions options) {
    const OneThreadAtATime::Use use(store()->one_thread(), "SGD add_group");
    check(options);
    const int group = static_cast<int>(groups_.size());
    auto moved = group_of_;
    for (const std::string& name : names) {
        bool found = false;
        for (std::size_t a = 0; a < moved.size(); ++a)
            for (std::size_t i = 0; i < moved[a].size(); ++i)
                if (matches(store()->parameters()[a].segments[i], name)) {
                    moved[a][i] = group;
                    found = true;
                }
        if (!found)
            throw InvalidArgument(fmt::format(
                "SGD: no parameter is called {} or lies in a module of that name; named_tensors() lists them", name));
    }
    group_of_ = std::move(moved);
    groups_.push_back(options);
    ++version_;
    return group;
}

const SgdOptions& SGD::options(int group) const {
    if (group < 0 || group >= static_cast<int>(groups_.size()))
        throw InvalidArgument(
            fmt::format("SGD: there is no group {}, only {}; add_group makes one", group, groups_.size()));
    return groups_[static_cast<std::size_t>(group)];
}

void SGD::set_options(SgdOptions wanted, int group) {
    const OneThreadAtATime::Use use(store()->one_thread(), "SGD settings");
    options(group);
    check(wanted);
    groups_[static_cast<std::size_t>(group)] = wanted;
    ++version_;
}

void SGD::set_lr(double lr, int group) {
    SgdOptions wanted = options(group);
    if (wanted.lr == lr) return;
    wanted.lr = lr;
    set_options(wanted, group);
}

std::vector<Segment> SGD::segments(int arena) const {
    const auto a = static_cast<std::size_t>(arena);
    std::vector<Segment> result;
    for (std::size_t i = 0; i < group_of_[a].size(); ++i) {
        const SgdOptions& group = groups_[static_cast<std::size_t>(group_of_[a][i])];
        const ArenaSegment& place = store()->parameters()[a].segments[i];
        Segment segment;
        segment.begin = place.begin;
        segment.end = place.end;
        segment.f64 = {.lr = group.lr,
                       .weight_decay = group.weight_decay,
                       .momentum = group.momentum,
                       .dampening = group.dampening};
        segment.f32 = {.lr = static_cast<float>(group.lr),
                       .weight_decay = static_cast<float>(group.weight_decay),
                       .momentum = static_cast<float>(group.momentum),
                       .dampening = static_cast<float>(group.dampening)};
        segment.nesterov = group.nesterov ? 1 : 0;
        segment.maximize = group.maximize ? 1 : 0;
        segment.trainable = store()->tensor(place).requires_grad() ? 1 : 0;
        result.push_back(segment);
    }
    return result;
}

bool SGD::has_momentum() const {
    for (const SgdOptions& group : groups_)
        if (group.momentum != 0) return true;
    return false;
}

std::shared_ptr<const Operation> SGD::update(std::int64_t begin, std::int64_t end, int first, int last) const {
    return std::make_shared<const SgdUpdate>(begin, end, first, last);
}

}  // namespace lockstep
