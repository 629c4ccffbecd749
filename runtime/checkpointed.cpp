#include "lockstep/runtime/checkpointed.h"

#include <fmt/format.h>

#include <string>

#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/checkpointed_call.h"
#include "lockstep/runtime/internal/eager.h"

namespace lockstep::detail {

namespace {

/// `what`: the calls of the first run, and those of the second one.
InvalidArgument runs_differ(const std::string& what) {
    return InvalidArgument(fmt::format(
        "checkpointed: the part {} when it ran again; expected a part that makes the same calls in both runs", what));
}

}  // namespace

thread_local CheckpointedCall::Run* CheckpointedCall::innermost = nullptr;

FirstRun::FirstRun(const std::vector<Tensor>& arguments, Part again)
    : call_(std::make_shared<CheckpointedCall>(arguments, std::move(again))) {
    call_->begin();
}
FirstRun::~FirstRun() { call_->end(); }

const Tensor& SavedInPart::value(std::uint64_t& version) {
    if (!value_.defined()) call_->repeat();
    version = version_;
    return value_;
}

CheckpointedCall::CheckpointedCall(const std::vector<Tensor>& arguments, FirstRun::Part again)
    : again_(std::move(again)), autocast_(Autocast::dtype()), host_position_(host_random_position()) {
    for (const Tensor& argument : arguments)
        arguments_.push_back({SavedTensor(argument, "checkpointed"), argument.defined() && argument.requires_grad()});
}

void CheckpointedCall::begin() {
    run_.outer = innermost;
    innermost = &run_;
}

void CheckpointedCall::end() {
    innermost = run_.outer;
    first_ = false;
    std::erase_if(seen_, [](const auto& entry) { return entry.second.storage.expired(); });
}

class CheckpointedCall::Again {
public:
    explicit Again(CheckpointedCall& call) : run_{&call, true, innermost}, autocast_(call.autocast_) {
        call.next_saved_ = call.next_ordinal_ = 0;
        set_host_random_position(call.host_position_);
        innermost = &run_;
    }
    ~Again() { innermost = run_.outer; }
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

private:
    Run run_;
    const HostRandomScope host_random_;
    const ForwardAgain graph_;
    const Autocast autocast_;
    const ApiScope names_{nullptr};
};

void CheckpointedCall::repeat() {
    if (first_)
        throw InvalidArgument(
            "checkpointed: the part calls backward() or grad() on functions that it contains; expected these calls "
            "outside of the part");
    const auto alive = shared_from_this();
    std::vector<Tensor> given;
    {
        const ForwardAgain plain;  // arguments without their history
        for (const Argument& argument : arguments_) {
            const Tensor tensor = argument.tensor.get();
            given.push_back(tensor.defined() ? tensor.detach() : tensor);
            if (argument.requires_grad) given.back().requires_grad_();
        }
    }
    const Again run(*this);
    again_(given);
    if (next_saved_ != saved_.size())
        throw runs_differ(fmt::format("saved {} tensors for backward, and {}", saved_.size(), next_saved_));
}

bool CheckpointedCall::repeats() {
    for (const Run* run = innermost; run; run = run->outer)
        if (run->again) return true;
    return false;
}

bool CheckpointedCall::omits(TensorList inputs, ListRef<Output> outputs) {
    bool omitted = false;
    for (const Run* run = innermost; run; run = run->outer) {
        for (const Output& output : outputs) {
            if (!output.target.defined()) continue;
            const std::shared_ptr<Storage>& storage = output.target.impl()->storage;
            if (!run->again) {
                Seen& seen = run->call->seen_[storage.get()];
                if (seen.storage.expired()) seen = {storage, output.target.version(), false};
                seen.written = true;
            } else if (const auto found = run->call->seen_.find(storage.get()); found != run->call->seen_.end()) {
                omitted |= found->second.written;
            }
        }
        if (run->again) break;
    }
    if (omitted) return true;
    for (const Run* run = innermost; run; run = run->outer) {
        for (const Tensor& input : inputs) {
            if (!input.defined()) continue;
            const std::shared_ptr<Storage>& storage = input.impl()->storage;
            if (!run->again) {
                Seen& seen = run->call->seen_[storage.get()];
                if (seen.storage.expired()) seen = {storage, input.version(), false};
            } else if (const auto found = run->call->seen_.find(storage.get());
                       found != run->call->seen_.end() && found->second.version != input.version()) {
                throw InvalidArgument(fmt::format(
                    "checkpointed: the part reads a tensor of shape {} that was written after its first run or by it "
                    "(version {}, read at {}); expected it unchanged until backward, and state that the part only "
                    "writes",
                    input.shape().str(), input.version(), found->second.version));
            }
        }
        if (run->again) break;
    }
    return false;
}

std::optional<std::uint32_t> CheckpointedCall::repeated_ordinal() {
    for (const Run* run = innermost; run; run = run->outer) {
        if (!run->again) continue;
        CheckpointedCall& call = *run->call;
        if (call.next_ordinal_ == call.ordinals_.size())
            throw runs_differ(fmt::format("drew random numbers in {} calls, and in more", call.ordinals_.size()));
        return call.ordinals_[call.next_ordinal_++];
    }
    return std::nullopt;
}

void CheckpointedCall::note_ordinal(std::uint32_t ordinal) {
    for (const Run* run = innermost; run && !run->again; run = run->outer) run->call->ordinals_.push_back(ordinal);
}

std::shared_ptr<SavedInPart> CheckpointedCall::save(const Tensor& tensor) {
    if (innermost == nullptr) return nullptr;
    if (!innermost->again) return innermost->call->save_first(tensor);
    innermost->call->save_again(tensor);
    return nullptr;
}

std::shared_ptr<SavedInPart> CheckpointedCall::save_first(const Tensor& tensor) {
    if (tensor.is_leaf() && tensor.requires_grad()) {  // a parameter occupies its memory anyway
        saved_.emplace_back();
        return nullptr;
    }
    auto saved = std::make_shared<SavedInPart>();
    saved->call_ = shared_from_this();
    saved->shape_ = tensor.shape();
    saved->dtype_ = tensor.dtype();
    saved_.push_back(saved);
    return saved;
}

void CheckpointedCall::save_again(const Tensor& tensor) {
    if (next_saved_ == saved_.size())
        throw runs_differ(fmt::format("saved {} tensors for backward, and more", saved_.size()));
    const std::shared_ptr<SavedInPart> saved = saved_[next_saved_++].lock();
    if (!saved) return;  // no function needs it any more
    if (!(saved->shape_ == tensor.shape()) || saved->dtype_ != tensor.dtype())
        throw runs_differ(fmt::format("saved {} {} for backward, and {} {}", name_of(saved->dtype_),
                                      saved->shape_.str(), name_of(tensor.dtype()), tensor.shape().str()));
    saved->value_ = tensor.detach();
    saved->version_ = tensor.version();
}

}  // namespace lockstep::detail
