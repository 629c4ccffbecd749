#include "lockstep/runtime/internal/eager.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/memory.h"

namespace lockstep::eager_state {

namespace {

struct DeviceState {
    std::mutex mutex;                      // for writes; enqueues, never waits
    std::shared_ptr<Buffer> memory;        // StepCounters, then StatusWord; permanent once allocated
    std::atomic<std::uint64_t> epoch = 0;  // value of `seed_epoch` when the state was uploaded
};

constexpr std::size_t status_offset = 64;
std::atomic<std::uint32_t> ordinals{0};
std::atomic<std::uint64_t> seed_epoch{1};
std::atomic<std::uint64_t> seed_value{0};

DeviceState& state_of(Device device) {
    constexpr std::size_t max_devices = 65;
    static auto* firsts = new std::array<std::array<std::atomic<DeviceState*>, max_devices>, 2>{};
    static auto* mutex = new std::mutex;
    static auto* states = new std::map<Device, DeviceState>;
    const auto number = static_cast<std::size_t>(device.index() + 1);
    auto* first = number < max_devices ? &(*firsts)[static_cast<std::size_t>(device.kind())][number] : nullptr;
    if (first)
        if (DeviceState* known = first->load(std::memory_order_acquire)) return *known;
    const std::scoped_lock lock(*mutex);
    DeviceState& state = (*states)[device];
    if (first) first->store(&state, std::memory_order_release);
    return state;
}

/// Uploads the seed of `wanted` to the device.
void upload(DeviceState& state, Device device, std::uint64_t wanted) {
    Stream& stream = Stream::of(device);
    const std::shared_ptr<Buffer> memory = Buffer::allocate(stream, status_offset + sizeof(StatusWord), "random state");
    const std::shared_ptr<Buffer> seed = Buffer::allocate_pinned(sizeof(StepCounters));
    seed->used_on(stream);  // freed after the copy
    auto* fresh = new (seed->data()) StepCounters;
    fresh->seed = seed_value;
    const std::scoped_lock lock(state.mutex);
    if (state.epoch >= wanted) return;
    if (!state.memory) {
        stream.fill(memory->data(), 0, memory->bytes());
        state.memory = memory;
    }
    stream.copy(state.memory->data(), device, fresh, Device::host(), sizeof *fresh);
    state.epoch.store(wanted, std::memory_order_release);
}

}  // namespace

State of(Device device) {
    DeviceState& state = state_of(device);
    const std::uint64_t wanted = seed_epoch;
    if (state.epoch.load(std::memory_order_acquire) < wanted) upload(state, device, wanted);
    char* memory = static_cast<char*>(state.memory->data());
    return {reinterpret_cast<const StepCounters*>(memory), reinterpret_cast<StatusWord*>(memory + status_offset)};
}

std::uint32_t next_ordinal() { return ordinals++; }

void reseed(std::uint64_t seed) {
    seed_value = seed;
    ordinals = 0;
    ++seed_epoch;
}

}  // namespace lockstep::eager_state

namespace lockstep {

class EagerReport {
public:
    explicit EagerReport(Device device)
        : stream_(Stream::of(device)),
          word_(Buffer::allocate(stream_, sizeof(StatusWord), "reports")),
          copy_(Buffer::allocate_pinned(sizeof(StatusWord))),
          arrived_(device) {}

    void begin(std::string_view call) {
        {
            const std::scoped_lock lock(mutex_);
            call_ = call;
            state_ = State::open;
        }
        stream_.fill(word_->data(), 0, sizeof(StatusWord));
    }
    Device device() const { return stream_.device(); }
    StatusWord* word() const { return static_cast<StatusWord*>(word_->data()); }
    void end() {
        stream_.copy(copy_->data(), Device::host(), word_->data(), stream_.device(), sizeof(StatusWord));
        stream_.record(arrived_);
        const std::scoped_lock lock(mutex_);
        state_ = State::on_its_way;
    }

    /// Has no error, or has reported it already.
    bool settled() {
        const std::scoped_lock lock(mutex_);
        if (state_ == State::on_its_way && arrived_.done()) look();
        return state_ == State::settled;
    }
    /// The device has not finished the call.
    bool on_its_way() {
        const std::scoped_lock lock(mutex_);
        return state_ == State::on_its_way;
    }
    /// Waits for the report. Empty if there is no error or it was reported already.
    std::string told() {
        await();
        const std::scoped_lock lock(mutex_);
        if (state_ != State::bad) return {};
        state_ = State::settled;
        const auto& found = *static_cast<const StatusWord*>(copy_->data());
        if (found.code == static_cast<std::int32_t>(StatusCode::index_out_of_range))
            return fmt::format("{}: index {} in row {} is out of range; expected 0 to (size of the dimension - 1)",
                               call_, found.value, found.row);
        if (found.code == static_cast<std::int32_t>(StatusCode::probability_out_of_range))
            return fmt::format("{}: probability {} in row {} is out of range; expected [0, 1]", call_,
                               std::bit_cast<double>(found.value), found.row);
        if (found.code == static_cast<std::int32_t>(StatusCode::deviation_negative))
            return fmt::format("{}: std {} in row {} is out of range; expected 0 or more", call_,
                               std::bit_cast<double>(found.value), found.row);
        if (found.code == static_cast<std::int32_t>(StatusCode::division_by_zero))
            return fmt::format("{}: the divisor in row {} is the integer 0; expected another number", call_, found.row);
        return fmt::format(
            "{}: target {} in row {} is out of range; expected a class from 0 to the number of outputs - 1", call_,
            found.value, found.row);
    }
    /// Waits for the report; true if it has an error to report.
    bool bad() {
        await();
        const std::scoped_lock lock(mutex_);
        return state_ == State::bad;
    }

private:
    enum class State : std::uint8_t { open, on_its_way, bad, settled };
    /// Waits without the lock. The caller holds a reference, so the report is not reused for another call meanwhile.
    void await() {
        {
            const std::scoped_lock lock(mutex_);
            if (state_ != State::on_its_way) return;
        }
        arrived_.synchronize();
        const std::scoped_lock lock(mutex_);
        if (state_ == State::on_its_way) look();
    }
    void look() { state_ = static_cast<const StatusWord*>(copy_->data())->code == 0 ? State::settled : State::bad; }

    std::mutex mutex_;
    Stream& stream_;
    std::shared_ptr<Buffer> word_, copy_;
    Event arrived_;
    std::string call_;
    State state_ = State::settled;
};

namespace eager_reports {

namespace {

/// All reports, reused when no values depend on them any more.
struct Table {
    std::mutex mutex;
    std::map<Device, std::list<std::shared_ptr<EagerReport>>> of;  ///< by the time of their last use
};
Table& table() {
    static auto* instance = new Table;  // tensors may be read until the very end
    return *instance;
}

}  // namespace

std::shared_ptr<EagerReport> begin(Device device, std::string_view call) {
    const auto free_one = [&]() -> std::shared_ptr<EagerReport> {
        const std::scoped_lock lock(table().mutex);
        auto& reports = table().of[device];
        for (auto report = reports.begin(); report != reports.end(); ++report) {
            if (report->use_count() != 1) continue;
            if ((*report)->settled()) {
                reports.splice(reports.end(), reports, report);
                return *report;
            }
            if ((*report)->on_its_way()) break;  // the device works in order: those of later calls are as well
        }
        return nullptr;
    };
    std::shared_ptr<EagerReport> report = free_one();
    if (!report) {
        report = std::make_shared<EagerReport>(device);  // without the lock: allocates memory
        const std::scoped_lock lock(table().mutex);
        table().of[device].push_back(report);
    }
    report->begin(call);
    return report;
}

StatusWord* word(const EagerReport& report) { return report.word(); }

Set end(const std::shared_ptr<EagerReport>& report) {
    report->end();
    return recycled::make_shared<EagerReports>(EagerReports{{report}});
}

void add(Set& set, const Set& more) {
    if (!more && !set) return;
    EagerReports both;
    for (const Set* part : {&std::as_const(set), &more}) {
        if (!*part) continue;
        for (const auto& report : (*part)->all)
            if (!report->settled() && std::find(both.all.begin(), both.all.end(), report) == both.all.end())
                both.all.push_back(report);
    }
    if (both.all.empty())
        set = nullptr;
    else if (more && both.all == more->all)
        set = more;
    else if (!set || both.all != set->all)
        set = recycled::make_shared<EagerReports>(std::move(both));
}

const Set& of(const Tensor& tensor) {
    static const Set none;
    return tensor.defined() ? tensor.impl()->storage->reports : none;
}

void carry(const Tensor& from, const Tensor& to) {
    if (const Set& set = of(from)) add(to.impl()->storage->reports, set);
}

Gate gate(const Set& set, Device device) {
    Gate gate;
    if (!set) return gate;
    for (const auto& report : set->all)
        if (!gate.word && report->device() == device)
            gate.word = report->word();
        else
            gate.closed = report->bad() || gate.closed;
    return gate;
}

namespace {

/// Throws the error of an earlier call, which its message names.
void throw_if_told(EagerReport& report) {
    const ApiScope without_the_reader{nullptr};
    if (const std::string text = report.told(); !text.empty()) throw InvalidArgument(text);
}

}  // namespace

void check(Set& set) {
    if (!set) return;
    const Set asked = set;
    for (const auto& report : asked->all) throw_if_told(*report);
    set = nullptr;
}

void check_all() {
    std::vector<std::shared_ptr<EagerReport>> all;
    {
        const std::scoped_lock lock(table().mutex);
        for (const auto& [device, reports] : table().of) all.insert(all.end(), reports.begin(), reports.end());
    }
    for (const auto& report : all) throw_if_told(*report);
}

}  // namespace eager_reports
}  // namespace lockstep
