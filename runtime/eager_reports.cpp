#include "lockstep/runtime/internal/eager_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"

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

    /// Has nothing (more) to tell.
    bool settled() {
        const std::scoped_lock lock(mutex_);
        if (state_ == State::on_its_way && arrived_.done()) look();
        return state_ == State::settled;
    }
    /// Waits for it. Empty unless there is something to tell, for the first who asks.
    std::string told() {
        await();
        const std::scoped_lock lock(mutex_);
        if (state_ != State::bad) return {};
        state_ = State::settled;
        const auto& found = *static_cast<const StatusWord*>(copy_->data());
        return fmt::format(
            "{}: target {} in row {} is out of range; expected a class from 0 to the number of outputs - 1", call_,
            found.value, found.row);
    }
    /// Waits for it; true where it has something to tell.
    bool bad() {
        await();
        const std::scoped_lock lock(mutex_);
        return state_ == State::bad;
    }

private:
    enum class State : std::uint8_t { open, on_its_way, bad, settled };
    /// Waits without the lock. Who calls holds a reference, so the report is not used for another call meanwhile.
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

/// All reports, used again when nobody depends on them any more.
struct Table {
    std::mutex mutex;
    std::map<Device, std::vector<std::shared_ptr<EagerReport>>> of;
};
Table& table() {
    static auto* instance = new Table;  // tensors may be read until the very end
    return *instance;
}

}  // namespace

std::shared_ptr<EagerReport> begin(Device device, std::string_view call) {
    const auto free_one = [&]() -> std::shared_ptr<EagerReport> {
        const std::scoped_lock lock(table().mutex);
        for (const auto& report : table().of[device])
            if (report.use_count() == 1 && report->settled()) return report;
        return nullptr;
    };
    std::shared_ptr<EagerReport> report = free_one();
    if (!report) {
        report = std::make_shared<EagerReport>(device);  // without the lock: takes memory
        const std::scoped_lock lock(table().mutex);
        table().of[device].push_back(report);
    }
    report->begin(call);
    return report;
}

StatusWord* word(const EagerReport& report) { return report.word(); }

Set end(const std::shared_ptr<EagerReport>& report) {
    report->end();
    return std::make_shared<const EagerReports>(EagerReports{{report}});
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
        set = std::make_shared<const EagerReports>(std::move(both));
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

void check(Set& set) {
    if (!set) return;
    const Set asked = set;
    for (const auto& report : asked->all)
        if (const std::string text = report->told(); !text.empty()) throw InvalidArgument(text);
    set = nullptr;
}

void check_all() {
    std::vector<std::shared_ptr<EagerReport>> all;
    {
        const std::scoped_lock lock(table().mutex);
        for (const auto& [device, reports] : table().of) all.insert(all.end(), reports.begin(), reports.end());
    }
    for (const auto& report : all)
        if (const std::string text = report->told(); !text.empty()) throw InvalidArgument(text);
}

}  // namespace eager_reports
}  // namespace lockstep
