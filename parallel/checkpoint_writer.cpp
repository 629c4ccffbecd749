#include "lockstep/parallel/checkpoint_writer.h"

#include <fmt/format.h>

#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/parallel/checkpoint/snapshot.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/moved_from.h"

namespace lockstep {

struct CheckpointWriter::Impl {
    using Paths = std::vector<std::filesystem::path>;

    internal::HostMemory memory;  // for the snapshot
    std::mutex mutex;
    std::condition_variable changed;
    std::unique_ptr<internal::Snapshot> snapshot;  // null: nothing is being written
    bool beginning = false;                        // a snapshot is being made
    Paths checkpoints;
    std::vector<FinishedSave> finished;
    std::exception_ptr failure;  // failure of the last save
    bool ending = false;
    const int made_in = forked::generation();
    std::thread thread;  // started by the first save

    /// True in a child of fork(): the write in progress belongs to the parent.
    bool is_of_parent() const { return made_in != forked::generation(); }
    ~Impl() {
        {
            const std::scoped_lock lock(mutex);
            ending = true;
        }
        changed.notify_all();
        if (thread.get_id() == std::this_thread::get_id())
            thread.detach();  // a handler of its warnings ends the process
        else if (thread.joinable())
            thread.join();
    }

    void rest(std::unique_lock<std::mutex>& lock) {
        changed.wait(lock, [this] { return !snapshot && !beginning; });
    }
    void run() {
        sigset_t all;  // signals are handled by the program's own threads
        sigfillset(&all);
        ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
        std::unique_lock lock(mutex);
        for (;;) {
            changed.wait(lock, [this] { return snapshot || ending; });
            if (!snapshot) return;
            lock.unlock();
            std::vector<FinishedSave> ended;
            const std::exception_ptr failed = write(ended);
            lock.lock();
            failure = failed;
            finished.insert(finished.end(), ended.begin(), ended.end());
            snapshot.reset();
            changed.notify_all();
        }
    }
    std::exception_ptr write(std::vector<FinishedSave>& ended) {
        bool good = false;
        try {
            good = snapshot->wait();
        } catch (const std::exception&) {  // a device is lost; the training thread gets the error
        }
        std::exception_ptr failed;
        for (const auto& checkpoint : checkpoints) {
            FinishedSave& save = ended.emplace_back(FinishedSave{checkpoint});
            if (!good) {
                save.error = "an earlier step was refused";
                continue;
            }
            try {
                internal::write_checkpoint(*snapshot, checkpoint);
            } catch (const std::exception& error) {
                failed = std::current_exception();
                save.error = error.what();
                write_log(LogLevel::warning,
                          fmt::format("the checkpoint of step {} was not saved, training continues: {}",
                                      snapshot->run().steps, error.what()));
            }
        }
        return failed;
    }
};

CheckpointWriter::CheckpointWriter()
    : impl_(new Impl, [](Impl* impl) {
          if (impl->is_of_parent())
              forked::keep(std::shared_ptr<const void>(impl, [](const void*) {}));
          else
              delete impl;
      }) {}
CheckpointWriter::~CheckpointWriter() = default;
CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;
CheckpointWriter& CheckpointWriter::operator=(CheckpointWriter&&) noexcept = default;

CheckpointWriter::Impl& CheckpointWriter::impl() const { return detail::content_of(impl_, "CheckpointWriter"); }

void CheckpointWriter::begin(Engine& engine, const std::vector<NamedTensor>& tensors, Optimizer& optimizer,
                             const RunState& run, const std::vector<std::filesystem::path>& checkpoints) {
    if (impl().is_of_parent()) forked::refuse("save", "this CheckpointWriter");
    Impl& impl = this->impl();
    {
        std::unique_lock lock(impl.mutex);
        impl.rest(lock);
        impl.beginning = true;
    }
    std::unique_ptr<internal::Snapshot> snapshot;
    std::exception_ptr failed;
    try {  // without the lock, because it may wait for devices
        snapshot = std::make_unique<internal::Snapshot>("save", engine, tensors, optimizer, run, impl.memory);
        if (!impl.thread.joinable()) impl.thread = std::thread([&impl] { impl.run(); });
    } catch (...) {
        snapshot.reset();
        failed = std::current_exception();
    }
    {
        const std::scoped_lock lock(impl.mutex);
        impl.beginning = false;
        impl.snapshot = std::move(snapshot);
        if (impl.snapshot) impl.checkpoints = checkpoints;
    }
    impl.changed.notify_all();
    if (failed) std::rethrow_exception(failed);
}

void CheckpointWriter::skip(const std::vector<std::filesystem::path>& checkpoints) {
    const std::scoped_lock lock(impl().mutex);
    for (const auto& checkpoint : checkpoints) impl().finished.push_back({checkpoint});
}

std::vector<FinishedSave> CheckpointWriter::finished() {
    if (impl().is_of_parent()) return {};
    const std::scoped_lock lock(impl().mutex);
    return std::exchange(impl().finished, {});
}

void CheckpointWriter::wait() {
    if (impl().is_of_parent()) return;
    std::unique_lock lock(impl().mutex);
    impl().rest(lock);
    if (const auto failed = std::exchange(impl().failure, nullptr)) std::rethrow_exception(failed);
}

}  // namespace lockstep
