// The log of a training run: TensorBoard event files, and JSON lines for other readers.
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

#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

namespace internal {
class LogWriter;
}

/// A number with its tag.
struct LoggedNumber {
    template <std::integral T>
    LoggedNumber(std::string name, T number) : tag(std::move(name)), value(static_cast<std::int64_t>(number)) {}
    template <std::floating_point T>
    LoggedNumber(std::string name, T number) : tag(std::move(name)), value(static_cast<double>(number)) {}

    std::string tag;  ///< "loss", "train/loss"; TensorBoard groups tags by the part before the slash
    std::variant<std::int64_t, double> value;
};

/// Options of an EventLog.
struct EventLogOptions {
    std::string name = "log";  ///< name of the JSON lines file: DIRECTORY/NAME.jsonl
    /// Number of steps before a resume. Log entries of earlier steps are retained; entries of this step and later ones
    /// are discarded (torch's `purge_step`). If not set, the log starts empty.
    std::optional<std::int64_t> resume_step = {};
    int rank = 0;  ///< rank of this process in its job; only rank 0 writes, on other ranks all calls do nothing
};

/// Writes to a directory that `tensorboard --logdir` reads (torch.utils.tensorboard.SummaryWriter). Every run adds an
/// event file to the directory, so use one directory per run and its resumes. Numbers are also written as JSON lines.
/// Calls copy their arguments and return; a log thread encodes and writes them within a second. Calls with a tensor
/// wait until it is computed. If the disk is full or fails, the log warns once and training continues; entries that do
/// not fit are dropped, and both files remain readable. One thread at a time.
class EventLog {
public:
    /// A log that writes nothing.
    EventLog();
    /// Creates the directory. Throws InvalidArgument if a file cannot be created in it. Also throws it if directory or
    /// file is a symbolic link of another user in a directory shared by all users (/tmp).
    explicit EventLog(const std::filesystem::path& directory, const EventLogOptions& options = {});
    /// Writes pending entries.
    ~EventLog();
    EventLog(EventLog&& other) noexcept;
    EventLog& operator=(EventLog&& other) noexcept;

    /// Writes numbers of one step, and one JSON line for them: {"step":12,"loss":0.5,"epoch":0}. NaN and infinities
    /// become null in JSON. Throws InvalidArgument for a tag that is empty or "step".
    void scalars(std::int64_t step, const std::vector<LoggedNumber>& scalars);
    void scalar(const std::string& tag, double value, std::int64_t step) { scalars(step, {{tag, value}}); }

    /// `pixels`: u8, (H, W) or (H, W, C) with C = 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA); written as PNG.
    /// torch's add_image(dataformats="HWC").
    void image(const std::string& tag, const Tensor& pixels, std::int64_t step);

    /// `classes`: u8, i32 or i64, (H, W), each at most 255. Written as a picture in the colours of the PASCAL VOC
    /// dataset (class 0 is black). Negative classes, which losses ignore, are white.
    void mask(const std::string& tag, const Tensor& classes, std::int64_t step);

    /// Distribution of all elements, of any dtype, in the buckets of torch's add_histogram (bins="tensorflow"). Values
    /// beyond 1e20 count in the outermost buckets. NaN and infinities are excluded; TAG/not_finite is their number, and
    /// a JSON line has the counts of "nan" and "inf". Throws InvalidArgument for an empty tensor.
    void histogram(const std::string& tag, const Tensor& values, std::int64_t step);

    /// Markdown for the Text tab, for example a configuration. Written only to the event file. torch's add_text.
    void text(const std::string& tag, const std::string& markdown, std::int64_t step = 0);

    /// Writes a JSON object, such as the program's configuration, only to the JSON lines. Throws InvalidArgument for
    /// other text.
    void json_line(const std::string& object);

    /// Returns when all entries so far have been written, or dropped with a warning.
    void flush();
    /// Ends the log early; later calls do nothing.
    void close();

private:
    const std::shared_ptr<internal::LogWriter>& writer() const;
    std::shared_ptr<internal::LogWriter> writer_;  // null: nothing is written
    detail::MoveMark mark_;
};

}  // namespace lockstep
