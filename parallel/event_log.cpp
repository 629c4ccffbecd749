#include "lockstep/parallel/event_log.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

#include "lockstep/parallel/data/images/codecs.h"
#include "lockstep/parallel/events/encoding.h"
#include "lockstep/parallel/events/log_writer.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

using internal::LogText;
using internal::WireMessage;
using nlohmann::ordered_json;

namespace {

// Numbers of fields, from TensorFlow's event.proto, summary.proto, histogram.proto and tensor.proto.
namespace event_fields {
constexpr unsigned wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7;
}
namespace session_fields {
constexpr unsigned status = 1;
constexpr std::int64_t start = 1;
}  // namespace session_fields
namespace value_fields {  // the only field of Summary has `number`; the others are fields of its Value
constexpr unsigned number = 1, tag = 1, simple_value = 2, image = 4, histogram = 5, tensor = 8, metadata = 9;
}
namespace image_fields {
constexpr unsigned height = 1, width = 2, colorspace = 3, encoded = 4;
}
namespace histogram_fields {
constexpr unsigned min = 1, max = 2, count = 3, sum = 4, sum_squares = 5, limits = 6, counts = 7;
}
namespace tensor_fields {
constexpr unsigned dtype = 1, shape = 2, string_value = 8, dimension = 2, dimension_size = 1;
constexpr std::int64_t string_type = 7;
}  // namespace tensor_fields
namespace metadata_fields {
constexpr unsigned plugin = 1, plugin_name = 1;
}

double seconds_now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Time and step of a log entry.
struct Moment {
    std::int64_t step = 0;
    double seconds = seconds_now();
    WireMessage event() const {
        WireMessage message;
        message.real(event_fields::wall_time, seconds).number(event_fields::step, step);
        return message;
    }
    /// A record with one summary.
    std::string record(const WireMessage& summary) const {
        return internal::framed(event().message(event_fields::summary, summary).text());
    }
};

WireMessage with_tag(const std::string& tag) {
    WireMessage message;
    message.bytes(value_fields::tag, internal::as_utf8(tag));
    return message;
}

WireMessage summary_of(const WireMessage& one) {
    WireMessage summary;
    summary.message(value_fields::number, one);
    return summary;
}

/// First records of every event file. The second one makes readers discard the entries of earlier files of the
/// directory for this step and later ones.
std::string first_records(std::int64_t step) {
    WireMessage version;
    version.real(event_fields::wall_time, seconds_now()).bytes(event_fields::file_version, "brain.Event:2");
    WireMessage started;
    started.number(session_fields::status, session_fields::start);
    return internal::framed(version.text()) +
           internal::framed(Moment{step}.event().message(event_fields::session_log, started).text());
}

void require_tag(const char* call, const std::string& tag) {
    if (tag.empty()) throw InvalidArgument(fmt::format("EventLog::{}: the tag is empty", call));
}

/// Host memory of a picture that is given as a tensor.
HostImage picture_from(const std::string& tag, const Tensor& pixels) {
    const bool flat = pixels.dims() == 2;
    if (pixels.dtype() != DType::u8 || (!flat && pixels.dims() != 3) || pixels.numel() == 0 ||
        (!flat && pixels.size(2) > 4))
        throw InvalidArgument(
            fmt::format("EventLog::image: '{}' is {} of shape {}; expected u8 of shape (height, width) or (height, "
                        "width, channels) with 1 to 4 channels, none of them 0",
                        tag, name_of(pixels.dtype()), pixels.shape().str()));
    constexpr std::array<ImageMode, 4> modes{ImageMode::grey, ImageMode::grey_alpha, ImageMode::rgb, ImageMode::rgba};
    const auto channels = static_cast<std::size_t>(flat ? 1 : pixels.size(2));
    return {pixels.size(0), pixels.size(1), modes[channels - 1], pixels.to_vector<std::uint8_t>(), {}};
}

WireMessage image_message(const std::string& tag, const HostImage& picture) {
    WireMessage image;
    image.number(image_fields::height, picture.height)
        .number(image_fields::width, picture.width)
        .number(image_fields::colorspace, picture.channels())
        .bytes(image_fields::encoded, internal::png_of(picture));
    return with_tag(tag).message(value_fields::image, image);
}

WireMessage histogram_message(const std::string& tag, const internal::Histogram& histogram) {
    WireMessage message;
    message.real(histogram_fields::min, histogram.min)
        .real(histogram_fields::max, histogram.max)
        .real(histogram_fields::count, static_cast<double>(histogram.count))
        .real(histogram_fields::sum, histogram.sum)
        .real(histogram_fields::sum_squares, histogram.sum_of_squares)
        .reals(histogram_fields::limits, histogram.limits)
        .reals(histogram_fields::counts, histogram.counts);
    return with_tag(tag).message(value_fields::histogram, message);
}

void put_histogram(LogText& text, const std::string& tag, const Moment& moment, const internal::Histogram& histogram) {
    if (histogram.count > 0) text.events += moment.record(summary_of(histogram_message(tag, histogram)));
    const std::int64_t others = histogram.nans + histogram.infinities;
    if (others == 0) return;
    text.events += moment.record(
        summary_of(with_tag(tag + "/not_finite").real32(value_fields::simple_value, static_cast<float>(others))));
    const ordered_json line = {{"step", moment.step},
                               {"histogram", internal::as_utf8(tag)},
                               {"finite", histogram.count},
                               {"nan", histogram.nans},
                               {"inf", histogram.infinities}};
    text.lines += line.dump() + '\n';
}

template <class T>
auto histogram_task(const std::string& tag, const Tensor& values, std::int64_t step) {
    return [=, moment = Moment{step}, elements = values.to_vector<T>()](LogText& text) {
        put_histogram(text, tag, moment, internal::histogram_of(std::span<const T>(elements)));
    };
}

}  // namespace

EventLog::EventLog() = default;
EventLog::~EventLog() = default;
EventLog::EventLog(EventLog&&) noexcept = default;
EventLog& EventLog::operator=(EventLog&&) noexcept = default;

EventLog::EventLog(const std::filesystem::path& directory, const EventLogOptions& options) {
    if (options.rank != 0) return;
    writer_ = internal::LogWriter::start(directory, options.name, options.resume_step,
                                         first_records(options.resume_step.value_or(0)));
}

void EventLog::scalars(std::int64_t step, const std::vector<LoggedNumber>& scalars) {
    for (const LoggedNumber& scalar : scalars) {
        require_tag("scalars", scalar.tag);
        if (scalar.tag == "step")
            throw InvalidArgument("EventLog::scalars: the tag 'step' is reserved for the step number");
    }
    if (!writer()) return;
    writer_->put(0, [scalars, moment = Moment{step}](LogText& text) {
        WireMessage summary;
        ordered_json line = {{"step", moment.step}};
        for (const LoggedNumber& scalar : scalars) {
            const double number = std::visit([](auto value) { return static_cast<double>(value); }, scalar.value);
            summary.message(value_fields::number,
                            with_tag(scalar.tag).real32(value_fields::simple_value, static_cast<float>(number)));
            std::visit([&](auto value) { line[internal::as_utf8(scalar.tag)] = value; }, scalar.value);
        }
        text.events += moment.record(summary);
        text.lines += line.dump() + '\n';
    });
}

void EventLog::image(const std::string& tag, const Tensor& pixels, std::int64_t step) {
    require_tag("image", tag);
    if (!writer()) return;
    HostImage picture = picture_from(tag, pixels);
    internal::require_codec("EventLog::image", "PNG");
    const std::size_t bytes = picture.pixels.size();
    writer_->put(bytes, [tag, moment = Moment{step}, picture = std::move(picture)](LogText& text) {
        text.events += moment.record(summary_of(image_message(tag, picture)));
    });
}

void EventLog::mask(const std::string& tag, const Tensor& classes, std::int64_t step) {
    require_tag("mask", tag);
    if (!writer()) return;
    const DType dtype = classes.dtype();
    if ((dtype != DType::u8 && dtype != DType::i32 && dtype != DType::i64) || classes.dims() != 2 ||
        classes.numel() == 0)
        throw InvalidArgument(fmt::format(
            "EventLog::mask: '{}' is {} of shape {}; expected classes as u8, i32 or i64 of shape (height, width)", tag,
            name_of(dtype), classes.shape().str()));
    const std::vector<std::int64_t> indices = classes.to(DType::i64).to_vector<std::int64_t>();
    for (const std::int64_t index : indices)
        if (index > 255)
            throw InvalidArgument(fmt::format("EventLog::mask: '{}' has class {}; expected at most 255", tag, index));
    internal::require_codec("EventLog::mask", "PNG");
    HostImage picture = internal::coloured(classes.size(0), classes.size(1), indices);
    const std::size_t bytes = picture.pixels.size();
    writer_->put(bytes, [tag, moment = Moment{step}, picture = std::move(picture)](LogText& text) {
        text.events += moment.record(summary_of(image_message(tag, picture)));
    });
}

void EventLog::histogram(const std::string& tag, const Tensor& values, std::int64_t step) {
    require_tag("histogram", tag);
    if (!writer()) return;
    if (values.numel() == 0)
        throw InvalidArgument(
            fmt::format("EventLog::histogram: '{}' of shape {} has no elements", tag, values.shape().str()));
    const DType dtype = values.dtype();
    const auto count = static_cast<std::size_t>(values.numel());
    if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16)
        writer_->put(count * sizeof(float), histogram_task<float>(tag, values.detach().to(DType::f32), step));
    else
        writer_->put(count * sizeof(double), histogram_task<double>(tag, values.detach().to(DType::f64), step));
}

void EventLog::text(const std::string& tag, const std::string& markdown, std::int64_t step) {
    require_tag("text", tag);
    if (!writer()) return;
    writer_->put(markdown.size(), [tag, markdown, moment = Moment{step}](LogText& text) {
        WireMessage plugin, metadata, dimension, shape, tensor;
        plugin.bytes(metadata_fields::plugin_name, "text");
        metadata.message(metadata_fields::plugin, plugin);
        dimension.number(tensor_fields::dimension_size, 1);
        shape.message(tensor_fields::dimension, dimension);
        tensor.number(tensor_fields::dtype, tensor_fields::string_type)
            .message(tensor_fields::shape, shape)
            .bytes(tensor_fields::string_value, internal::as_utf8(markdown));
        text.events += moment.record(
            summary_of(with_tag(tag).message(value_fields::metadata, metadata).message(value_fields::tensor, tensor)));
    });
}

void EventLog::json_line(const std::string& object) {
    const auto parsed = ordered_json::parse(object, nullptr, false);
    if (!parsed.is_object()) throw InvalidArgument("EventLog::json_line: '" + object + "' is not a JSON object");
    if (writer()) writer_->put(object.size(), [line = parsed.dump() + '\n'](LogText& text) { text.lines += line; });
}

void EventLog::flush() {
    if (writer()) writer_->flush();
}

void EventLog::close() {
    static_cast<void>(writer());
    writer_.reset();
}

const std::shared_ptr<internal::LogWriter>& EventLog::writer() const {
    mark_.require("EventLog");
    return writer_;
}

}  // namespace lockstep
