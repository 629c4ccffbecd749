// Streams: their workers and their API calls.
#include "lockstep/tests/cuda_standin/state.h"

namespace standin {

void Marker::complete() {
    {
        const std::scoped_lock lock(mutex_);
        time_ = std::chrono::steady_clock::now();
        done_.store(true, std::memory_order_release);
    }
    completed_.notify_all();
}

void Marker::wait() {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [this] { return done(); });
}

Stream::Stream(int device, unsigned flags, int priority, std::uint64_t serial)
    : device_(device), flags_(flags), priority_(priority), serial_(serial), head_(new Task), tail_(head_) {
    sem_init(&available_, 0, 0);
    std::thread([this] { work(); }).detach();
}

Stream::~Stream() {
    sem_destroy(&available_);
    delete head_;
}

void Stream::enqueue(std::function<void()> task, bool always, bool counts_itself) {
    Task* added = new Task;
    added->body = std::move(task);
    added->always = always;
    added->counts_itself = counts_itself;
    tail_->next.store(added, std::memory_order_release);
    tail_ = added;
    ++enqueued_;
    sem_post(&available_);
}

MarkerPtr Stream::enqueue_marker() {
    auto marker = std::make_shared<Marker>();
    // Counted before it completes, so that the stream is idle after a wait for the marker.
    enqueue(
        [this, marker] {
            finished_.fetch_add(1, std::memory_order_release);
            marker->complete();
        },
        true, true);
    return marker;
}

void Stream::enqueue_wait(const MarkerPtr& marker) {
    enqueue([marker] { marker->wait(); }, true);
}

MarkerPtr Stream::finish(const std::shared_ptr<Stream>& self) {
    self->self_ = self;
    MarkerPtr end = self->enqueue_marker();
    self->enqueue({}, true);  // an empty task ends the worker
    return end;
}

void Stream::work() {
    on_worker() = true;
    for (;;) {
        while (sem_wait(&available_) != 0) {
        }
        Task* next = head_->next.load(std::memory_order_acquire);
        delete head_;
        head_ = next;
        if (!next->body) break;
        delay();
        if (next->always || sticky_error() == cudaSuccess) next->body();
        next->body = nullptr;
        if (!next->counts_itself) finished_.fetch_add(1, std::memory_order_release);
    }
    const std::shared_ptr<Stream> last_reference = std::move(self_);
}

void Stream::delay() {
    const Delays now = delays();
    if (now.max_us <= 0) return;
    if (now.epoch != delay_epoch_) {
        delay_epoch_ = now.epoch;
        random_.seed(now.seed * 1000003 + serial_);
    }
    const auto longest = static_cast<std::uint64_t>(now.max_us);
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % (longest + 1)));
}

std::shared_ptr<Stream> Call::stream(cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) return device(current_device()).default_stream;
    const auto found = state_.streams.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == state_.streams.end())
        refuse(cudaErrorInvalidResourceHandle, Kind::destroyed_handle, "the stream was destroyed or never created");
    return found->second;
}

std::shared_ptr<Stream> Call::work_stream(cudaStream_t handle) {
    auto found = stream(handle);
    const auto& common = device(found->device()).default_stream;
    if (found == common) {
        for (auto& [id, each] : state_.streams)
            if (each->device() == found->device() && each->blocking()) found->enqueue_wait(each->enqueue_marker());
    } else if (found->blocking()) {
        found->enqueue_wait(common->enqueue_marker());
    }
    wait_for_room(found);
    return found;
}

std::shared_ptr<Stream> Call::launch_stream(cudaStream_t handle) {
    auto found = work_stream(handle);
    if (found->device() != current_device())
        refuse(cudaErrorInvalidResourceHandle, Kind::wrong_device,
               "the stream belongs to device " + std::to_string(found->device()) + ", but device " +
                   std::to_string(current_device()) + " is current");
    return found;
}

void Call::wait(const MarkerPtr& marker) {
    ++state_.counted.host_waits[name_];
    lock_.unlock();
    marker->wait();
    lock_.lock();
    if (sticky_error() != cudaSuccess) throw Failure{sticky_error()};
}

void Call::wait_to_the_end(const MarkerPtr& marker) {
    lock_.unlock();
    marker->wait();
    lock_.lock();
}

void Call::wait_for_room(const std::shared_ptr<Stream>& target) {
    while (target->unfinished() >= state_.config.launch_queue && sticky_error() == cudaSuccess) {
        lock_.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        lock_.lock();
    }
}

std::vector<MarkerPtr> Call::mark_device(int device_index) {
    std::vector<MarkerPtr> ends;
    for (auto& [handle, each] : state_.streams)
        if (each->device() == device_index) ends.push_back(each->enqueue_marker());
    ends.push_back(device(device_index).default_stream->enqueue_marker());
    for (const auto& [owner, end] : state_.ending)
        if (owner == device_index) ends.push_back(end);
    return ends;
}

namespace {

void create(Call& call, cudaStream_t* stream, unsigned flags, int priority) {
    if (stream == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0)
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "null pointer or unknown flags");
    const std::uintptr_t id = call.new_handle();
    call.state().streams.emplace(id, std::make_shared<Stream>(call.current_device(), flags, priority, id));
    *stream = reinterpret_cast<cudaStream_t>(id);
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return runtime_call("cudaStreamCreate", [&](Call& call) { create(call, stream, cudaStreamDefault, 0); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
    return runtime_call("cudaStreamCreateWithFlags", [&](Call& call) { create(call, stream, flags, 0); });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
    return runtime_call("cudaStreamCreateWithPriority", [&](Call& call) { create(call, stream, flags, priority); });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return runtime_call("cudaDeviceGetStreamPriorityRange", [&](Call&) {
        if (least != nullptr) *least = 0;
        if (greatest != nullptr) *greatest = -5;
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    return runtime_call("cudaStreamGetPriority", [&](Call& call) { *priority = call.stream(stream)->priority(); });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
    return runtime_call("cudaStreamGetFlags", [&](Call& call) { *flags = call.stream(stream)->flags(); });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
    return runtime_call("cudaStreamGetDevice", [&](Call& call) { *device = call.stream(stream)->device(); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return runtime_call("cudaStreamDestroy", [&](Call& call) {
        auto found = call.stream(stream);
        if (stream == nullptr || stream == cudaStreamLegacy)
            refuse(cudaErrorInvalidResourceHandle, Kind::invalid_argument, "the default stream cannot be destroyed");
        call.state().streams.erase(reinterpret_cast<std::uintptr_t>(stream));
        auto& ending = call.state().ending;
        std::erase_if(ending, [](const auto& each) { return each.second->done(); });
        ending.emplace_back(found->device(), Stream::finish(found));
    });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    bool idle = false;
    const cudaError_t status = runtime_call("cudaStreamQuery", [&](Call& call) { idle = call.stream(stream)->idle(); });
    return status == cudaSuccess && !idle ? not_ready() : status;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return runtime_call("cudaStreamSynchronize", [&](Call& call) { call.wait(call.stream(stream)->enqueue_marker()); });
}

cudaError_t cudaDeviceSynchronize() {
    return runtime_call("cudaDeviceSynchronize", [&](Call& call) {
        for (const auto& end : call.mark_device(call.current_device())) call.wait(end);
    });
}

}  // extern "C"
