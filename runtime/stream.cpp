#include "lockstep/runtime/stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/runtime/cpu/cpu_queue.h"
#include "lockstep/runtime/cpu/serial_mode.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/copy_count.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/order_checker.h"

namespace lockstep {

namespace {

constexpr std::uint64_t id_of_moved_from = 0;
std::atomic<std::uint64_t> next_event_id{1};

void require_content(const Event& event) {
    if (event.id() == id_of_moved_from) detail::refuse_moved_from("Event");
}

std::string_view role_name(StreamRole role) {
    switch (role) {
        case StreamRole::reduce: return "reduce";
        case StreamRole::commit: return "commit";
        case StreamRole::input: return "input";
        case StreamRole::collective: return "collective";
        case StreamRole::compute: break;
    }
    return "compute";
}

void check_ownership(const Stream& stream, std::string_view what, std::span<const Access> accesses) {
    for (const Access& access : accesses) {
        if (access.owner == stream.device() || access.owner.is_host() || access.mode == Access::Mode::peer_read)
            continue;
        throw InvalidArgument(
            fmt::format("{} on stream {}: memory belongs to {}, and is not a declared peer read; expected memory of "
                        "the stream's device",
                        what, stream.name(), access.owner.str()));
    }
}

/// For calls that give the device work. The host's own work is still allowed: threads joined by static destructors use
/// it.
void require_open(std::string_view what, Device device) {
    forked::require(what, device);
    if (process_exit::begun() && !device.is_host()) process_exit::hold_back(what);
}

}  // namespace

Event::Event(Device device, bool timed) : device_(device), timed_(timed), id_(next_event_id++) {
    require_visible(device);
    impl_ = backend_of(device).make_event(device.index(), timed);
}
Event::~Event() = default;
Event::Event(Event&& other) noexcept
    : device_(other.device_),
      timed_(other.timed_),
      impl_(std::move(other.impl_)),
      id_(std::exchange(other.id_, id_of_moved_from)) {}
Event& Event::operator=(Event&& other) noexcept {
    if (this == &other) return *this;
    device_ = other.device_;
    timed_ = other.timed_;
    impl_ = std::move(other.impl_);
    id_ = std::exchange(other.id_, id_of_moved_from);
    return *this;
}

bool Event::done() const { return detail::content_of(impl_, "Event").done(); }

void Event::synchronize() const {
    require_content(*this);
    forked::require("synchronize", device_);
    impl_->synchronize();
    if (order_check::enabled()) order_check::on_host_wait_event(id_);
}

double Event::elapsed_ms(const Event& from, const Event& to) {
    require_content(from);
    require_content(to);
    if (!from.timed_ || !to.timed_)
        throw InvalidArgument("elapsed_ms: an event is not timed; expected Event(device, true) for both");
    if (!from.impl_->recorded() || !to.impl_->recorded())
        throw InvalidArgument("elapsed_ms: an event was never recorded; expected both recorded on a stream");
    if (!from.done() || !to.done())
        throw InvalidArgument("elapsed_ms: an event has not been reached; expected synchronize() first");
    return to.impl_->elapsed_ms_since(*from.impl_);
}

void drain_at_exit() {
    if (stop_cpu_workers_from_one()) return;  // it would wait for itself
    try {
        drain_all_streams();
    } catch (...) {  // the process is ending; no caller is left to report to
    }
}

/// Work in flight when main returns needs static objects of libraries (oneDNN's kernels, created at first use). The
/// main thread's thread-local objects are destroyed before any static one, so the wait happens here.
struct MainThread {
    ~MainThread() { drain_at_exit(); }
};
thread_local MainThread main_thread;
[[maybe_unused]] const MainThread* const made_on_the_main_thread = &main_thread;

/// All streams of the process. They are never destroyed: memory may be freed in their order until the very end.
class StreamTable {
public:
    static StreamTable& instance() {
        static StreamTable* table = [] {
            auto* made = new StreamTable;
            std::atexit(drain_at_exit);  // for work enqueued by static destructors
            process_exit::wait_for_devices = drain_at_exit;
            process_exit::watch();
            return made;
        }();
        return *table;
    }

    Stream& of(Device device, StreamRole role, int index) {
        std::atomic<Stream*>* first = index == 0 ? first_of(device, role) : nullptr;
        if (first)
            if (Stream* stream = first->load(std::memory_order_acquire)) return *stream;
        if (index < 0)
            throw InvalidArgument(
                fmt::format("invalid index {} of a stream of {}; expected 0 or more", index, device.str()));
        Stream* stream = find(device, role, index);
        if (!stream) {
            require_visible(device);
            // Created without the lock: a GPU's first stream waits for its driver.
            std::unique_ptr<Stream> made(new Stream(device, role, index, next_id_++));
            const std::scoped_lock lock(mutex_);
            auto& place = streams_[{device, role, index}];
            if (!place) place = std::move(made);
            stream = place.get();
        }
        if (first) first->store(stream, std::memory_order_release);
        return *stream;
    }

    std::vector<Stream*> all() {
        const std::scoped_lock lock(mutex_);
        std::vector<Stream*> result;
        for (auto& [key, stream] : streams_)
            if (stream) result.push_back(stream.get());
        return result;
    }

private:
    static constexpr std::size_t roles = 5, max_devices = 65;

    /// Lock-free cache of stream 0 of a role; null for devices with high numbers.
    std::atomic<Stream*>* first_of(Device device, StreamRole role) {
        const auto number = static_cast<std::size_t>(device.index() + 1);
        if (number >= max_devices) return nullptr;
        return &firsts_[static_cast<std::size_t>(device.kind())][number][static_cast<std::size_t>(role)];
    }
    Stream* find(Device device, StreamRole role, int index) {
        const std::scoped_lock lock(mutex_);
        const auto found = streams_.find({device, role, index});
        return found == streams_.end() ? nullptr : found->second.get();
    }

    std::mutex mutex_;
    std::map<std::tuple<Device, StreamRole, int>, std::unique_ptr<Stream>> streams_;
    std::array<std::array<std::array<std::atomic<Stream*>, roles>, max_devices>, 2> firsts_{};
    std::atomic<int> next_id_{0};
};

Stream& Stream::of(Device device, StreamRole role, int index) {
    return StreamTable::instance().of(device, role, index);
}

Stream::Stream(Device device, StreamRole role, int index, int id)
    : device_(device),
      role_(role),
      name_(fmt::format("{}/{}{}", device.str(), role_name(role), index)),
      id_(id),
      impl_(backend_of(device).make_stream(device.index(), role)),
      handoff_(device) {}

void Stream::run(std::string_view what, std::span<const Access> accesses, Work work, int threads) {
    if (!work) throw InvalidArgument(fmt::format("{} on stream {}: no work to run; expected a function", what, name_));
    require_open(what, device_);
    check_ownership(*this, what, accesses);
    for (const Access& access : accesses)
        if (access.mode == Access::Mode::peer_read) copy_count::add(access.owner, device_, access.bytes);
    if (order_check::enabled()) order_check::on_work(id_, name_, what, accesses);
    const serial_mode::Guard guard(device_, accesses);
    impl_->run(std::move(work), std::max(threads, 1));
}

bool Stream::runs_at_once() const { return impl_->runs_at_once(); }

void Stream::account_copy(std::span<Access, 2> accesses, std::size_t bytes) {
    require_open("copy", device_);
    Access& from = accesses[0];
    const Access& to = accesses[1];
    if (from.owner != device_) from.mode = Access::Mode::peer_read;
    if (to.owner != device_ && from.owner != device_)
        throw InvalidArgument(fmt::format(
            "copy from {} to {} on stream {}: neither side is the stream's device; expected a stream of one of them",
            from.owner.str(), to.owner.str(), name_));
    const bool of_gpu = from.owner.kind() == DeviceKind::cuda || to.owner.kind() == DeviceKind::cuda;
    if (of_gpu && device_.kind() != DeviceKind::cuda)
        throw InvalidArgument(
            fmt::format("copy from {} to {} on stream {}: CPU devices cannot access the memory of a GPU; expected a "
                        "stream of the GPU",
                        from.owner.str(), to.owner.str(), name_));
    if (order_check::enabled()) order_check::on_work(id_, name_, "copy", accesses);
    copy_count::add(from.owner, to.owner, bytes);
}

void Stream::copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
    if (bytes == 0) return;
    Access accesses[] = {{from, bytes, from_device, Access::Mode::read}, {to, bytes, to_device, Access::Mode::write}};
    account_copy(accesses, bytes);
    const serial_mode::Guard guard(device_, accesses);
    impl_->copy(to, to_device, from, from_device, bytes);
}

void Stream::copy_2d(void* to, std::size_t to_pitch, Device to_device, const void* from, std::size_t from_pitch,
                     Device from_device, std::size_t row_bytes, std::size_t rows) {
    if (row_bytes == 0 || rows == 0) return;
    if (row_bytes > to_pitch || row_bytes > from_pitch)
        throw InvalidArgument(
            fmt::format("copy_2d: rows of {} bytes do not fit pitches {} and {}; expected pitches of at least a row",
                        row_bytes, from_pitch, to_pitch));
    Access accesses[] = {{from, from_pitch * (rows - 1) + row_bytes, from_device, Access::Mode::read},
                         {to, to_pitch * (rows - 1) + row_bytes, to_device, Access::Mode::write}};
    account_copy(accesses, row_bytes * rows);
    const serial_mode::Guard guard(device_, accesses);
    impl_->copy_2d(to, to_pitch, to_device, from, from_pitch, from_device, row_bytes, rows);
}

void Stream::fill(void* to, std::uint8_t value, std::size_t bytes) {
    if (bytes == 0) return;
    require_open("fill", device_);
    const Access access[] = {{to, bytes, device_, Access::Mode::write}};
    if (order_check::enabled()) order_check::on_work(id_, name_, "fill", access);
    const serial_mode::Guard guard(device_, access);
    impl_->fill(to, value, bytes);
}

void Stream::callback(std::function<void()> function) {
    if (!function)
        throw InvalidArgument(fmt::format("callback on stream {}: no function; expected one to call", name_));
    require_open("callback", device_);
    impl_->callback(std::move(function));
}

void Stream::record(Event& event) {
    require_content(event);
    if (event.device() != device_)
        throw InvalidArgument(
            fmt::format("an event of {} cannot be recorded on stream {}; expected an event of the stream's device",
                        event.device().str(), name_));
    forked::require("record", device_);
    if (order_check::enabled()) order_check::on_record(id_, name_, event.id());
    impl_->record(event.impl());
}

void Stream::wait(const Event& event) {
    require_content(event);
    forked::require("wait", device_);
    forked::require("wait", event.device());
    if (order_check::enabled()) order_check::on_wait(id_, name_, event.id());
    impl_->wait(event.impl());
}

void Stream::wait(Stream& other) {
    if (&other == this) return;
    other.record(other.handoff_);
    wait(other.handoff_);
}

void Stream::synchronize() {
    forked::require("synchronize", device_);
    const auto rests = [this] {
        if (order_check::enabled()) order_check::on_host_wait_stream(id_);
    };
    try {
        impl_->synchronize();
    } catch (...) {  // from failed work: nothing runs there any more
        rests();
        throw;
    }
    rests();
}

bool Stream::idle() const { return impl_->idle(); }

void synchronize_all() {
    drain_all_streams();
    eager_reports::check_all();
}

void drain_all_streams() {
    std::exception_ptr first;
    for (Stream* stream : StreamTable::instance().all()) {
        try {
            stream->synchronize();
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    }
    if (first) std::rethrow_exception(first);
}

}  // namespace lockstep
