#include "lockstep/parallel/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <system_error>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/other_kind.h"
#include "lockstep/parallel/data/files/tensor_bytes.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using internal::InputFile;

constexpr std::size_t chunk_bytes = 1 << 18;

[[noreturn]] void refuse(const std::string& name, std::uint64_t offset, const std::string& what) {
    throw DataError(name + ": offset " + std::to_string(offset) + ": " + what +
                    "; expected a valid IDX file, plain or gzip");
}

/// The bytes of an IDX file in order, decompressed if necessary. Offsets are those of the content.
class Source {
public:
    virtual ~Source() = default;
    /// Fills `to`. Throws DataError if the content ends before.
    virtual void read(std::span<std::byte> to) = 0;
    /// Throws DataError if content is left.
    virtual void expect_end() = 0;
    /// Upper limit of the remaining content.
    virtual std::uint64_t largest_content() const = 0;
};

class PlainSource : public Source {
public:
    explicit PlainSource(const InputFile& file) : file_(file) {}
    void read(std::span<std::byte> to) override {
        file_.read_at(offset_, to);
        offset_ += to.size();
    }
    void expect_end() override {
        if (offset_ != file_.size()) {
            refuse(file_.name(), offset_, std::to_string(file_.size() - offset_) + " bytes follow the last element");
        }
    }
    std::uint64_t largest_content() const override { return file_.size(); }

private:
    const InputFile& file_;
    std::uint64_t offset_ = 0;
};

class GzipSource : public Source {
public:
    explicit GzipSource(const InputFile& file) : file_(file), input_(chunk_bytes) {
        if (inflateInit2(&stream_, gzip_window) != Z_OK) {
            throw DataError(file_.name() + ": zlib cannot be started (out of memory)");
        }
    }
    ~GzipSource() override { inflateEnd(&stream_); }
    GzipSource(const GzipSource&) = delete;
    GzipSource& operator=(const GzipSource&) = delete;

    void read(std::span<std::byte> to) override {
        const std::size_t got = inflate_some(to);
        content_ += got;
        if (got != to.size()) {
            refuse(file_.name(), content_,
                   "the decompressed content ends here, " + std::to_string(to.size() - got) + " bytes too early");
        }
    }
    void expect_end() override {
        std::array<std::byte, 1> extra{};
        if (inflate_some(extra) != 0) refuse(file_.name(), content_, "decompressed bytes follow the last element");
    }
    // Maximum compression of deflate: 258 bytes in two bits.
    std::uint64_t largest_content() const override { return (file_.size() + 1) * 1032; }

private:
    static constexpr int gzip_window = 15 + 16;

    /// Decompresses until `to` is full or the last member of the file ends, checksums included.
    std::size_t inflate_some(std::span<std::byte> to) {
        std::size_t done = 0;
        while (done < to.size() && !ended_) {
            if (stream_.avail_in == 0) refill();
            const std::size_t room = std::min<std::size_t>(to.size() - done, std::numeric_limits<uInt>::max());
            stream_.next_out = reinterpret_cast<Bytef*>(to.data() + done);
            stream_.avail_out = static_cast<uInt>(room);
            const int status = inflate(&stream_, Z_NO_FLUSH);
            done += room - stream_.avail_out;
            if (status == Z_STREAM_END) {
                pass_zeros();
                ended_ = stream_.avail_in == 0;
                if (!ended_ && inflateReset(&stream_) != Z_OK) corrupt();
            } else if (status != Z_OK) {
                corrupt();
            }
        }
        return done;
    }
    /// Skips zeros between and after members, which are padding, as in gzip.
    void pass_zeros() {
        for (;;) {
            if (stream_.avail_in == 0) {
                if (position_ == file_.size()) return;
                refill();
            }
            if (*stream_.next_in != 0) return;
            ++stream_.next_in;
            --stream_.avail_in;
        }
    }
    void refill() {
        const std::uint64_t left = file_.size() - position_;
        if (left == 0) refuse(file_.name(), position_, "the gzip stream is cut off here");
        const std::span<std::byte> next(input_.data(),
                                        static_cast<std::size_t>(std::min<std::uint64_t>(left, chunk_bytes)));
        file_.read_at(position_, next);
        position_ += next.size();
        stream_.next_in = reinterpret_cast<Bytef*>(next.data());
        stream_.avail_in = static_cast<uInt>(next.size());
    }
    [[noreturn]] void corrupt() const {
        refuse(file_.name(), position_ - stream_.avail_in,
               std::string("the gzip stream is corrupt (") +
                   (stream_.msg != nullptr ? stream_.msg : "no reason given") + ")");
    }

    const InputFile& file_;
    std::vector<std::byte> input_;
    z_stream stream_{};
    std::uint64_t position_ = 0;  // bytes of the file read so far
    std::uint64_t content_ = 0;   // bytes decompressed so far
    bool ended_ = false;
};

struct TypeCode {
    DType dtype;
    unsigned code;
};
constexpr std::array<TypeCode, 4> type_codes = {
    {{DType::u8, 0x08}, {DType::i32, 0x0c}, {DType::f32, 0x0d}, {DType::f64, 0x0e}}};

std::string written_out(std::span<const std::int64_t> shape) {
    std::string text = "(";
    for (const std::int64_t dimension : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
    return text + ")";
}

/// Converts between the file's order, big-endian, and the machine's.
void change_order(std::span<std::byte> data, std::size_t element) {
    if constexpr (std::endian::native == std::endian::little) {
        if (element == 1) return;
        for (std::size_t i = 0; i < data.size(); i += element) {
            const std::span<std::byte> one = data.subspan(i, element);
            std::reverse(one.begin(), one.end());
        }
    }
}

/// Throws DataError also if the content cannot be that long.
IdxHeader parse_header(const std::string& name, Source& source) {
    std::array<std::byte, 4> magic{};
    source.read(magic);
    const auto code = std::to_integer<unsigned>(magic[2]);
    const auto dimensions = std::to_integer<std::size_t>(magic[3]);
    if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) {
        refuse(name, 0, "not an IDX file (its first two bytes are not 0)");
    }
    const auto* type = std::find_if(type_codes.begin(), type_codes.end(), [&](TypeCode t) { return t.code == code; });
    if (type == type_codes.end()) {
        constexpr std::string_view digits = "0123456789abcdef";
        const std::string what = code == 0x09 ? " (i8)" : code == 0x0b ? " (i16)" : "";
        refuse(name, 2,
               std::string("element type 0x") + digits[code / 16] + digits[code % 16] + what +
                   " is not one of 0x08 (u8), 0x0c (i32), 0x0d (f32), 0x0e (f64)");
    }
    if (dimensions == 0) refuse(name, 3, "the array has no dimensions");

    IdxHeader header{type->dtype, {}};
    std::vector<std::byte> sizes(4 * dimensions);
    source.read(sizes);
    for (std::size_t i = 0; i < dimensions; ++i) {
        std::uint32_t size = 0;
        for (std::size_t k = 0; k < 4; ++k) size = size << 8 | std::to_integer<std::uint32_t>(sizes[4 * i + k]);
        header.shape.push_back(size);
    }
    const std::uint64_t before = magic.size() + sizes.size();
    const std::optional<std::uint64_t> bytes = internal::shape_bytes(header.shape, size_of(header.dtype));
    // checked before allocation: a header of a few bytes must not request terabytes
    if (!bytes || *bytes > source.largest_content() || before + *bytes > source.largest_content()) {
        refuse(name, 4,
               "the shape " + written_out(header.shape) + " of " + std::string(name_of(header.dtype)) +
                   " is larger than the file can hold (truncated or corrupt)");
    }
    return header;
}

IdxArray parse_array(const std::string& name, Source& source) {
    IdxHeader header = parse_header(name, source);
    IdxArray array{header.dtype, std::move(header.shape), {}};
    const auto bytes = static_cast<std::size_t>(*internal::shape_bytes(array.shape, size_of(array.dtype)));
    // Memory is reserved once, and used as the content arrives, because the header may promise more than follows.
    array.data.reserve(bytes);
    constexpr std::size_t piece = std::size_t{16} << 20;
    for (std::size_t done = 0; done < bytes; done = array.data.size()) {
        array.data.resize(std::min(bytes, done + piece));
        source.read(std::span(array.data).subspan(done));
    }
    source.expect_end();
    change_order(array.data, size_of(array.dtype));
    return array;
}

constexpr std::string_view expected = "IDX, plain or gzip";

/// The result of `parse` for the content, compressed or not.
template <class Parse>
auto read_content(const std::filesystem::path& path, Parse&& parse) {
    const InputFile file(path);
    std::array<std::byte, 2> start{};
    if (file.size() == 0) internal::refuse_other_kind(file, expected);
    if (file.size() < start.size()) refuse(file.name(), file.size(), "the file ends before its header does");
    file.read_at(0, start);
    // detected by content, because browsers may add or remove .gz
    if (start[0] == std::byte{0x1f} && start[1] == std::byte{0x8b}) {
        GzipSource source(file);
        return parse(file.name(), source);
    }
    if (start[0] != std::byte{0}) internal::refuse_other_kind(file, expected);
    PlainSource source(file);
    return parse(file.name(), source);
}

/// Compresses to `file` without name and time in the header, so that equal content gives equal files.
void write_gzip(AtomicFile& file, std::span<const std::span<const std::byte>> parts, const std::string& name) {
    z_stream stream{};
    constexpr int gzip_window = 15 + 16;
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, gzip_window, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
        throw DataError(name + ": zlib cannot be started (out of memory)");
    }
    struct End {
        z_stream& stream;
        ~End() { deflateEnd(&stream); }
    } const end{stream};
    std::vector<std::byte> output(chunk_bytes);
    const auto drain = [&](int flush) {
        int status = Z_OK;
        do {
            stream.next_out = reinterpret_cast<Bytef*>(output.data());
            stream.avail_out = static_cast<uInt>(output.size());
            status = deflate(&stream, flush);
            file.write(std::span(output).first(output.size() - stream.avail_out));
        } while (stream.avail_out == 0 || (flush == Z_FINISH && status == Z_OK));
    };
    for (std::span<const std::byte> part : parts) {
        while (!part.empty()) {
            const std::span<const std::byte> next = part.first(std::min(part.size(), chunk_bytes));
            // zlib's interface predates const
            stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(next.data()));
            stream.avail_in = static_cast<uInt>(next.size());
            drain(Z_NO_FLUSH);
            part = part.subspan(next.size());
        }
    }
    drain(Z_FINISH);
}

}  // namespace

IdxHeader read_idx_header(const std::filesystem::path& path) { return read_content(path, parse_header); }

IdxArray read_idx(const std::filesystem::path& path) { return read_content(path, parse_array); }

void write_idx(const std::filesystem::path& path, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::byte> data, IdxCompression compression) {
    const auto* type = std::find_if(type_codes.begin(), type_codes.end(), [&](TypeCode t) { return t.dtype == dtype; });
    if (type == type_codes.end()) {
        throw InvalidArgument("write_idx: " + path.string() + ": IDX files cannot hold " + std::string(name_of(dtype)) +
                              "; expected u8, i32, f32 or f64");
    }
    const bool fits = std::all_of(shape.begin(), shape.end(), [](std::int64_t d) {
        return d >= 0 && d <= std::int64_t{std::numeric_limits<std::uint32_t>::max()};
    });
    if (shape.empty() || shape.size() > 255 || !fits) {
        throw InvalidArgument("write_idx: " + path.string() + ": shape " + written_out(shape) +
                              " cannot be stored; expected 1 to 255 dimensions of 0 to 4294967295");
    }
    if (internal::shape_bytes(shape, size_of(dtype)) != data.size()) {
        throw InvalidArgument("write_idx: " + path.string() + ": data holds " + std::to_string(data.size()) +
                              " bytes, which does not match shape " + written_out(shape) + " of " +
                              std::string(name_of(dtype)));
    }
    std::vector<std::byte> header = {std::byte{0}, std::byte{0}, static_cast<std::byte>(type->code),
                                     static_cast<std::byte>(shape.size())};
    for (const std::int64_t dimension : shape) {
        for (int shift = 24; shift >= 0; shift -= 8)
            header.push_back(static_cast<std::byte>(dimension >> shift & 0xff));
    }
    std::vector<std::byte> swapped;
    if (size_of(dtype) > 1) {
        swapped.assign(data.begin(), data.end());
        change_order(swapped, size_of(dtype));
        data = swapped;
    }
    AtomicFile file(path);
    const std::array<std::span<const std::byte>, 2> parts = {header, data};
    if (compression == IdxCompression::gzip) {
        write_gzip(file, parts, path.string());
    } else {
        for (const std::span<const std::byte> part : parts) file.write(part);
    }
    file.commit();
}

MnistFiles find_mnist(const std::filesystem::path& directory) {
    std::error_code ignored;
    std::error_code error;
    if (!std::filesystem::is_directory(directory, error)) {
        if (error == std::errc::permission_denied)
            throw DataError(directory.string() + ": the directory cannot be read: " + error.message());
        throw DataError(directory.string() + ": no such directory; expected one with MNIST's four IDX files");
    }
    const auto find = [&](const std::string& part, const std::string& kind) {
        for (const std::filesystem::path& folder : {directory, directory / "MNIST" / "raw"}) {
            for (const char* suffix : {"", ".gz"}) {
                for (const char* separator : {"-", "."}) {
                    const std::filesystem::path path = folder / (part + separator + kind + suffix);
                    if (std::filesystem::is_regular_file(path, ignored)) return path;
                }
            }
        }
        throw DataError(directory.string() + ": neither " + part + "-" + kind + " nor " + part + "-" + kind +
                        ".gz found in it or in MNIST/raw; expected MNIST's four IDX files");
    };
    return {find("train-images", "idx3-ubyte"), find("train-labels", "idx1-ubyte"), find("t10k-images", "idx3-ubyte"),
            find("t10k-labels", "idx1-ubyte")};
}

}  // namespace lockstep
