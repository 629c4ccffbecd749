#include "lockstep/parallel/comm/group/operation_queue.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep {

void WorkState::set(Status status, int source, const std::string& message) {
    const std::scoped_lock lock(mutex_);
    if (status_ != Status::pending) return;
    status_ = status;
    source_ = source;
    message_ = message;
    changed_.notify_all();
}

bool WorkState::done() const {
    const std::scoped_lock lock(mutex_);
    return status_ != Status::pending;
}

bool WorkState::wait_until(Deadline time) const {
    std::unique_lock lock(mutex_);
    const auto done = [&] { return status_ != Status::pending; };
    while (!changed_.wait_for(lock, std::min(time_until(time), look_interval), done))
        if (RunClock::now() >= time) return false;
    return true;
}

void WorkState::wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return status_ != Status::pending; });
}

void WorkState::check() const {
    const std::scoped_lock lock(mutex_);
    if (status_ == Status::failed) throw CommunicationError(message_);
}

int WorkState::source() const {
    const std::scoped_lock lock(mutex_);
    return source_;
}

namespace {

/// Number of polls without progress before a thread sleeps.
constexpr int looks = 2000;
constexpr std::chrono::microseconds nap(200);

}  // namespace

std::string MessageCall::name() const {
    if (peer == Transport::any_source) return "receive from any rank";
    return fmt::format("{} rank {}", sends ? "send to" : "receive from", peer);
}

OperationQueue::OperationQueue(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {
    communicator_->set_meanwhile([this] { move_messages(); });
}

OperationQueue::~OperationQueue() {
    bool under_way = false;
    {
        const std::scoped_lock lock(mutex_);
        stopping_ = true;
        under_way = under_way_ != 0;
        wake_.notify_all();
    }
    if (under_way)  // without the lock, because it may notify the other hosts
        communicator_->abort(
            fmt::format("rank {} has left the group with operations in flight", communicator_->rank()));
    if (thread_.joinable()) thread_.join();
    on_gpus_.clear();
    communicator_->set_meanwhile(nullptr);
    const std::string reason = fmt::format("rank {} of {}: the group was destroyed before the operation was done",
                                           communicator_->rank(), communicator_->size());
    for (const Queued& one : queued_) one.state->fail(reason);
    for (const auto* list : {&posted_, &moving_})
        for (const Moving& one : *list) one.state->fail(reason);
}

std::byte* OperationQueue::begin(TensorRange& range, std::optional<Device> gpu) {
    try {
        return range.begin(gpu);
    } catch (const std::exception& error) {  // otherwise the other ranks would wait for a call that never begins
        communicator_->abort(fmt::format("rank {} cannot reach a tensor: {}", communicator_->rank(), error.what()));
        throw;
    }
}

void OperationQueue::make(Collective& call) {
    const std::optional<Device> gpu = gpu_of(call);
    Communicator& communicator = gpu ? communicator_on(*gpu) : *communicator_;
    const auto side = [&](const TensorRange& range) { return gpu || call.reduces ? gpu : stays_on(range); };
    const std::byte* in = begin(call.in, side(call.in));
    std::byte* out = begin(call.out, side(call.out));
    call.make(communicator, in, out);
    call.out.end();
}

std::optional<Device> OperationQueue::stays_on(const TensorRange& range) const {
    return communicator_->takes_gpu_memory() ? range.gpu() : std::nullopt;
}

std::optional<Device> OperationQueue::gpu_of(const Collective& call) const {
    if (!communicator_->has_gpu_memory()) return std::nullopt;
    if (call.in.empty()) return call.out.gpu();
    if (call.out.empty()) return call.in.gpu();
    return call.in.gpu() == call.out.gpu() ? call.in.gpu() : std::nullopt;
}

Communicator& OperationQueue::communicator_on(Device gpu) {
    auto& communicator = on_gpus_[gpu];
    if (!communicator) {
        communicator = communicator_->on(gpu, nullptr);
        communicator->set_meanwhile([this] { move_messages(); });
    }
    return *communicator;
}

void OperationQueue::run(Collective call) {
    {
        std::unique_lock lock(mutex_);
        ++callers_;
        ++under_way_;
        free_.wait(lock, [&] { return !occupied_ && queued_.empty(); });
        --callers_;
        occupied_ = true;
    }
    struct Leave {
        OperationQueue& queue;
        ~Leave() {
            const std::scoped_lock lock(queue.mutex_);
            --queue.under_way_;
            queue.leave();
        }
    } const leave{*this};
    make(call);
}

std::shared_ptr<WorkState> OperationQueue::start(Collective call) {
    auto state = std::make_shared<WorkState>();
    if (communicator_->size() == 1) {
        make(call);
        state->succeed(-1);
        return state;
    }
    const std::scoped_lock lock(mutex_);
    queued_.push_back({std::move(call), state});
    ++under_way_;
    need_thread();
    return state;
}

std::shared_ptr<WorkState> OperationQueue::post(MessageCall call) {
    auto state = std::make_shared<WorkState>();
    const Deadline deadline = deadline_in(communicator_->info().timeout);
    posted_.push_back({std::move(call), state, deadline});
    ++under_way_;
    return state;
}

std::shared_ptr<WorkState> OperationQueue::start(MessageCall call) {
    const std::scoped_lock lock(mutex_);
    auto state = post(std::move(call));
    need_thread();
    return state;
}

int OperationQueue::run(MessageCall call) {
    const Communicator::Waiting waiting(*communicator_);
    std::unique_lock lock(mutex_);
    const auto state = post(std::move(call));
    const auto is_idle = [&] { return callers_ == 0 && queued_.empty(); };
    if (!occupied_ && is_idle()) {
        occupied_ = true;
        for (int quiet = 0; is_idle();) {
            lock.unlock();
            const bool moved = move_messages();
            const bool done = state->done();
            lock.lock();
            if (done) break;
            if (moved)
                quiet = 0;
            else
                rest(lock, quiet);
        }
        leave();
    }
    if (!state->done()) need_thread();
    lock.unlock();
    state->wait();
    state->check();
    return state->source();
}

void OperationQueue::leave() {
    occupied_ = false;
    free_.notify_all();
    wake_.notify_all();
}

void OperationQueue::end(const std::shared_ptr<WorkState>& state, int source, const std::string& error) {
    {
        const std::scoped_lock lock(mutex_);  // first, because the waiter that is notified may destroy the group
        --under_way_;
    }
    error.empty() ? state->succeed(source) : state->fail(error);
}

void OperationQueue::need_thread() {
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    wake_.notify_all();
}

void OperationQueue::rest(std::unique_lock<std::mutex>& lock, int& quiet) {
    if (++quiet > looks) {
        wake_.wait_for(lock, nap);
        return;
    }
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
}

void OperationQueue::serve() {
    std::unique_lock lock(mutex_);
    for (int quiet = 0; !stopping_;) {
        const bool collective = !queued_.empty();
        // A caller that waits for the communicator has priority over messages, which it advances itself.
        if (occupied_ || !(collective || (has_messages() && callers_ == 0))) {
            wake_.wait(lock);
            continue;
        }
        occupied_ = true;
        bool moved = true;
        if (collective) {
            Queued one = std::move(queued_.front());
            queued_.pop_front();
            lock.unlock();
            std::string error;
            try {
                make(one.call);
            } catch (const std::exception& caught) {
                error = caught.what();
            }
            one.call = {};  // releases the memory before a waiter is notified
            end(one.state, -1, error);
        } else {
            lock.unlock();
            moved = move_messages();
        }
        lock.lock();
        occupied_ = false;
        free_.notify_all();
        if (moved)
            quiet = 0;
        else if (!stopping_)
            rest(lock, quiet);
    }
}

bool OperationQueue::move_messages() {
    {
        const std::scoped_lock lock(mutex_);
        moving_.splice(moving_.end(), posted_);
    }
    bool moved = false;
    for (auto one = moving_.begin(); one != moving_.end();) {
        std::optional<int> source;
        std::string error;
        try {
            source = move(*one);
        } catch (const std::exception& caught) {
            error = caught.what();
        }
        if (!source && error.empty()) {
            ++one;
            continue;
        }
        moved = true;
        const std::shared_ptr<WorkState> state = one->state;
        {
            const std::scoped_lock lock(mutex_);  // has_messages reads the list
            one = moving_.erase(one);
        }
        end(state, source.value_or(-1), error);
    }
    return moved;
}

std::optional<int> OperationQueue::move(Moving& one) {
    MessageCall& call = one.call;
    const std::size_t bytes = call.range.bytes();
    if (!one.message) {
        std::byte* memory = begin(call.range, stays_on(call.range));
        one.message = call.sends ? communicator_->send(memory, bytes, call.peer, call.tag)
                                 : communicator_->receive(memory, bytes, call.peer, call.tag);
    }
    if (!communicator_->advance(*one.message, call.name(), bytes)) {
        if (RunClock::now() < one.deadline) return std::nullopt;
        communicator_->give_up(call.name(), bytes,
                               fmt::format("it was not done within {} ms", communicator_->info().timeout.count()));
    }
    call.range.end();
    return call.sends ? -1 : one.message->source();
}

}  // namespace lockstep
