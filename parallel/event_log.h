// The log of a training run: TensorBoard event files, and JSON lines for every other reader.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

namespace internal {
class LogWriter;
}

/// A number under its tag.
struct LoggedNumber {
    template <std::integral T>
    LoggedNumber(std::string name, T number) : tag(std::move(name)), value(static_cast<std::int64_t>(number)) {}
    template <std::floating_point T>
    LoggedNumber(std::string name, T number) : tag(std::move(name)), value(static_cast<double>(number)) {}

    std::string tag;  ///< "loss", "train/loss": TensorBoard groups by what stands before the slash
    std::variant<std::int64_t, double> value;
};

struct EventLogOptions {
    std::string name = "log";  ///< the JSON lines go to DIRECTORY/NAME.jsonl
    /// How many steps a run has done that goes on: the log keeps what it holds of the steps before this one, and drops
    /// what it holds of this step and later ones, which were lost (torch's `purge_step`). Without it the log begins
    /// anew.
    std::optional<std::int64_t> resume_step = {};
    int rank = 0;  ///< of this process in its job: only rank 0 writes, and calls of others do nothing
};

/// Writes to a directory that `tensorboard --logdir` reads (torch.utils.tensorboard.SummaryWriter). Every run adds an
/// event file there, so that a directory is best kept for one run and its continuations; numbers go to the JSON lines
/// as well. The calls copy what they are given and return: encoding and writing is done by a thread of the log within a
/// second. Calls with a tensor wait until it is computed. A disk that is full, or fails, is one warning, and training
/// goes on: what doesn't fit is dropped, and both files stay readable. One thread at a time.
class EventLog {
public:
    /// Writes nothing.
    EventLog();
    /// Makes the directory. Throws InvalidArgument when a file cannot be made there.
    explicit EventLog(const std::filesystem::path& directory, const EventLogOptions& options = {});
    /// Writes what is pending.
    ~EventLog();
    EventLog(EventLog&& other) noexcept;
    EventLog& operator=(EventLog&& other) noexcept;

    /// Numbers of one step, and one JSON line for them: {"step":12,"loss":0.5,"epoch":0}. JSON has no NaN and no
    /// infinity: there stands null. InvalidArgument for a tag that is empty or "step".
    void scalars(std::int64_t step, const std::vector<LoggedNumber>& scalars);
    void scalar(const std::string& tag, double value, std::int64_t step) { scalars(step, {{tag, value}}); }

    /// `pixels`: u8, (H, W) or (H, W, C) with C = 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA); written as PNG.
    /// torch's add_image(dataformats="HWC").
    void image(const std::string& tag, const Tensor& pixels, std::int64_t step);

    /// `classes`: u8, i32 or i64, (H, W), each at most 255; a picture in which each class has its colour (that of the
    /// PASCAL VOC data set; class 0 is black), and negative ones, which losses ignore, are white.
    void mask(const std::string& tag, const Tensor& classes, std::int64_t step);

    /// Distribution of all elements, of any dtype, in the buckets of torch's add_histogram (bins="tensorflow"); what
    /// lies outside them, beyond 1e20, counts in the outermost ones. NaN and infinities are left out and counted:
    /// TAG/not_finite is their number, and a JSON line tells "nan" and "inf". InvalidArgument when there is no element.
    void histogram(const std::string& tag, const Tensor& values, std::int64_t step);

    /// Markdown for the Text tab: a configuration, say. torch's add_text. Stands in the event file alone.
    void text(const std::string& tag, const std::string& markdown, std::int64_t step = 0);

    /// A JSON object for the JSON lines alone: what a program tells about itself. InvalidArgument for anything else.
    void json_line(const std::string& object);

    /// Returns when all that was logged so far has been written, or given up with a warning.
    void flush();
    /// Ends the log early; calls after that do nothing.
    void close();

private:
    const std::shared_ptr<internal::LogWriter>& writer() const;
    std::shared_ptr<internal::LogWriter> writer_;  // null: nothing is written
    bool moved_from_ = false;
};

}  // namespace lockstep
