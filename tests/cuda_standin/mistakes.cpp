// Mistakes, unread errors, and injected failures.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "lockstep/tests/cuda_standin/state.h"

namespace standin {
namespace {

struct Injection {
    std::string name;
    int countdown;
    int status;
    bool sticky;
};

struct Faults {
    std::mutex mutex;
    std::vector<Mistake> mistakes;
    std::vector<Injection> calls;
    std::vector<Injection> kernels;
};

Faults& faults() {
    static Faults* all = new Faults;  // outlives every worker
    return *all;
}

std::atomic<int> poisoned{cudaSuccess};
std::atomic<std::uint64_t> delay_seed{0};
std::atomic<int> delay_max_us{0};
std::atomic<std::uint64_t> delay_epoch{0};

// Unread errors of one host thread.
struct ThreadErrors {
    std::uint64_t epoch = 0;
    cudaError_t last = cudaSuccess;
    std::string unread;  // the failed call and its code
};

ThreadErrors& thread_errors() {
    thread_local ThreadErrors errors;
    if (errors.epoch != current_epoch()) errors = {current_epoch(), cudaSuccess, {}};
    return errors;
}

// Set while this thread has the driver's lock.
bool& holds_driver() {
    thread_local bool holds = false;
    return holds;
}

void report_unread(ThreadErrors& errors, const char* next) {
    if (errors.unread.empty()) return;
    const std::string unread = std::exchange(errors.unread, {});
    record_mistake(Kind::ignored_error, unread + ", and the error was not fetched before " + next);
}

// Counts down the entries with that name; returns the one that is due.
std::optional<Injection> due(std::vector<Injection>& injections, const std::string& name) {
    std::optional<Injection> found;
    for (auto& each : injections)
        if (each.name == name && --each.countdown == 0) found = each;
    std::erase_if(injections, [](const Injection& each) { return each.countdown <= 0; });
    return found;
}

[[maybe_unused]] const bool exit_check_installed = [] {
    faults();
    std::atexit([] {
        const auto left = mistakes();
        if (left.empty()) return;
        std::fprintf(stderr, "CUDA stand-in: %zu mistake(s) in this process\n", left.size());
        for (const auto& each : left)
            std::fprintf(stderr, "  %s: %s\n", std::string(name_of(each.kind)).c_str(), each.message.c_str());
        std::fflush(nullptr);
        std::_Exit(97);
    });
    return true;
}();

}  // namespace

std::string_view name_of(Kind kind) {
    switch (kind) {
        case Kind::wrong_device: return "wrong device";
        case Kind::no_peer_access: return "no peer access";
        case Kind::host_memory: return "host memory";
        case Kind::event_not_recorded: return "event not recorded";
        case Kind::use_after_free: return "use after free";
        case Kind::double_free: return "double free";
        case Kind::destroyed_handle: return "destroyed handle";
        case Kind::out_of_bounds: return "out of bounds";
        case Kind::ignored_error: return "ignored error";
        case Kind::invalid_argument: return "invalid argument";
        case Kind::called_from_callback: return "called from callback";
        case Kind::workspace: return "workspace";
        case Kind::unsupported: return "unsupported";
        case Kind::alignment: return "alignment";
        case Kind::concurrent_use: return "concurrent use";
        case Kind::kernel: return "kernel";
    }
    return "unknown";
}

void refuse(cudaError_t code, Kind kind, std::string message) { throw Refusal{code, kind, std::move(message)}; }

void record_mistake(Kind kind, std::string message) {
    const std::scoped_lock lock(faults().mutex);
    faults().mistakes.push_back({kind, std::move(message)});
}

std::vector<Mistake> mistakes() {
    report_unread(thread_errors(), "the end");
    const std::scoped_lock lock(faults().mutex);
    return faults().mistakes;
}

std::vector<Mistake> take_mistakes() {
    report_unread(thread_errors(), "the end");
    const std::scoped_lock lock(faults().mutex);
    return std::exchange(faults().mistakes, {});
}

void inject_failure(std::string function, int nth, int status, bool sticky) {
    const std::scoped_lock lock(faults().mutex);
    faults().calls.push_back({std::move(function), nth, status, sticky});
}

void inject_fault(std::string kernel, int nth, cudaError_t status) {
    const std::scoped_lock lock(faults().mutex);
    faults().kernels.push_back({std::move(kernel), nth, status, true});
}

void set_delays(std::uint64_t seed, int max_delay_us) {
    delay_seed = seed;
    delay_max_us = max_delay_us;
    ++delay_epoch;
}

Delays delays() {
    return {delay_seed.load(std::memory_order_relaxed), delay_max_us.load(std::memory_order_relaxed),
            delay_epoch.load(std::memory_order_relaxed)};
}

void reset_faults(const Config& config) {
    const std::scoped_lock lock(faults().mutex);
    faults().mistakes.clear();
    faults().calls.clear();
    faults().kernels.clear();
    poisoned = cudaSuccess;
    set_delays(config.delay_seed, config.max_delay_us);
}

bool& on_worker() {
    thread_local bool worker = false;
    return worker;
}

cudaError_t sticky_error() { return static_cast<cudaError_t>(poisoned.load(std::memory_order_relaxed)); }
void set_sticky_error(cudaError_t code) { poisoned.store(code, std::memory_order_relaxed); }

cudaError_t fault_of_launch(const std::string& kernel) {
    const std::scoped_lock lock(faults().mutex);
    const auto found = due(faults().kernels, kernel);
    return found ? static_cast<cudaError_t>(found->status) : cudaSuccess;
}

std::optional<Early> enter(const char* name, bool library) {
    if (on_worker()) {
        record_mistake(Kind::called_from_callback, std::string(name) + " was called from a host function");
        return Early{false, cudaErrorNotPermitted};
    }
    State& shared = state();
    if (!holds_driver()) {
        const std::shared_lock passing(shared.driver);
    }
    ThreadErrors& errors = thread_errors();
    report_unread(errors, name);
    bool usable = true;
    {
        const std::scoped_lock lock(shared.mutex);
        ++shared.counted.calls[name];
        shared.threads.insert(std::this_thread::get_id());
        usable = shared.config.driver == Driver::present && !shared.devices.empty();
    }
    std::optional<Injection> injected;
    {
        const std::scoped_lock lock(faults().mutex);
        injected = due(faults().calls, name);
    }
    if (injected) {
        if (injected->sticky) set_sticky_error(static_cast<cudaError_t>(injected->status));
        if (library) return Early{true, leave_library(name, injected->status)};
        return Early{true, leave_failed(name, Failure{static_cast<cudaError_t>(injected->status)})};
    }
    cudaError_t code = sticky_error();
    if (!usable && code == cudaSuccess)
        code = shared.config.driver == Driver::present ? cudaErrorNoDevice : cudaErrorInsufficientDriver;
    if (code == cudaSuccess) return std::nullopt;
    if (library)
        leave_library(name, code);
    else
        leave_failed(name, Failure{code});
    return Early{false, code};
}

bool needs_context(std::string_view name) {
    constexpr std::array<std::string_view, 8> free_of_it{
        "cudaGetDeviceCount",    "cudaGetDevice",           "cudaGetDeviceProperties", "cudaDeviceGetAttribute",
        "cudaDeviceGetPCIBusId", "cudaDeviceCanAccessPeer", "cudaGetDriverEntryPoint",
        "cudaSetDevice",  // creates a context on the device it names
    };
    return std::find(free_of_it.begin(), free_of_it.end(), name) == free_of_it.end();
}

DriverLock::DriverLock() {
    if (on_worker()) return;  // the call itself is rejected
    lock_ = std::unique_lock(state().driver);
    holds_driver() = true;
}

DriverLock::~DriverLock() {
    if (lock_) holds_driver() = false;
}

int leave_failed(const char* name, const Failure& failure) {
    ThreadErrors& errors = thread_errors();
    errors.last = failure.code;
    errors.unread = std::string(name) + " returned " + cudaGetErrorName(failure.code);
    return failure.code;
}

int leave_failed(const char* name, const Refusal& refusal) {
    record_mistake(refusal.kind, std::string(name) + ": " + refusal.message);
    return leave_failed(name, Failure{refusal.code});
}

int leave_library(const char* name, int status) {
    thread_errors().unread = std::string(name) + " returned status " + std::to_string(status);
    return status;
}

void error_fetched() {
    if (!on_worker()) thread_errors().unread.clear();
}

cudaError_t last_error(bool clear) {
    ThreadErrors& errors = thread_errors();
    errors.unread.clear();
    if (sticky_error() != cudaSuccess) return sticky_error();
    return clear ? std::exchange(errors.last, cudaSuccess) : errors.last;
}

cudaError_t not_ready() {
    thread_errors().last = cudaErrorNotReady;
    return cudaErrorNotReady;
}

}  // namespace standin
