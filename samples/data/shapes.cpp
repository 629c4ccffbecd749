#include "lockstep/samples/data/shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/image_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/data/canvas.h"
#include "lockstep/samples/data/scenery.h"
#include "lockstep/samples/data/split_mix.h"
#include "lockstep/samples/data/vehicle.h"

namespace samples {
namespace {

constexpr std::int64_t max_shapes = 100'000;

void require_sides(const char* call, int width, int height) {
    for (const int side : {width, height})
        if (side < 32 || side > 4096)
            throw lockstep::InvalidArgument(fmt::format(
                "{}: size is {} x {} pixels (width x height); expected 32 to 4096 each", call, width, height));
}

/// Camera effects: exposure, and noise in every pixel.
void expose(const std::vector<CanvasColour>& picture, std::vector<std::uint8_t>& pixels, SplitMix& random) {
    const double exposure = random.uniform(0.8, 1.15), haze = random.uniform(0, 14), noise = random.uniform(1.5, 9);
    const auto level = [&](double value, double grey) {
        const double noisy = exposure * value + haze + noise * (0.7 * grey + 0.7 * random.bell());
        return static_cast<std::uint8_t>(std::clamp(noisy + 0.5, 0.0, 255.0));
    };
    for (std::size_t i = 0; i < picture.size(); ++i) {
        const double grey = random.bell();
        pixels[3 * i] = level(picture[i].red, grey);
        pixels[3 * i + 1] = level(picture[i].green, grey);
        pixels[3 * i + 2] = level(picture[i].blue, grey);
    }
}

std::string shape_name(std::int64_t index) { return fmt::format("shape_{:05}", index); }

/// Creates the folder. Throws if it contains files that would not be overwritten.
void prepare_folder(const std::filesystem::path& folder, const std::set<std::string>& names) {
    lockstep::make_directories(folder);
    std::error_code error;
    std::filesystem::directory_iterator entry;
    if (!error) entry = std::filesystem::directory_iterator(folder, error);
    for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error))
        if (!names.contains(entry->path().filename()))
            throw lockstep::InvalidArgument(
                fmt::format("write_shapes: {} holds another file, {}, which would become part of the set; expected an "
                            "empty directory",
                            folder.string(), entry->path().filename().string()));
    if (error)
        throw lockstep::InvalidArgument(
            fmt::format("write_shapes: cannot create the directory {}: {}", folder.string(), error.message()));
}

}  // namespace

ShapeDrawing draw_shape(std::uint64_t seed, std::uint64_t index, int width, int height) {
    require_sides("draw_shape", width, height);
    SplitMix random(seed, index, 1);
    Canvas canvas(width, height);
    const VehiclePlace vehicle = draw_vehicle(canvas, width, height, random);
    std::vector<CanvasColour> picture = draw_scenery(width, height, vehicle, random);
    cast_shadow(picture, width, height, vehicle, random);
    mirror_in_floor(picture, width, height, canvas, vehicle, random);

    ShapeDrawing drawing{{height, width, lockstep::ImageMode::rgb, {}, {}},
                         {height, width, lockstep::ImageMode::palette, {}, {{0, 0, 0}, {255, 255, 255}}}};
    drawing.image.pixels.resize(3 * picture.size());
    drawing.mask.pixels.resize(picture.size());
    std::size_t at = 0;
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x, ++at) {
            const Canvas::Pixel over = canvas.pixel(x, y);
            picture[at] = (1 - over.cover) * picture[at] + over.cover * over.colour;
            drawing.mask.pixels[at] = over.cover >= 0.5 ? 1 : 0;
        }
    expose(picture, drawing.image.pixels, random);
    return drawing;
}

void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options) {
    if (options.count < 1 || options.count > max_shapes)
        throw lockstep::InvalidArgument(
            fmt::format("write_shapes: count is {}; expected 1 to {} images", options.count, max_shapes));
    require_sides("write_shapes", options.width, options.height);
    std::set<std::string> images, masks;
    for (std::int64_t i = 0; i < options.count; ++i) {
        images.insert(shape_name(i) + ".jpg");
        masks.insert(shape_name(i) + "_mask.gif");
    }
    prepare_folder(directory / "imgs", images);
    prepare_folder(directory / "masks", masks);
    const std::int64_t cores = std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::future<void>> parts;
    for (std::int64_t first = 0; first < std::min(cores, options.count); ++first)
        parts.push_back(std::async([&, first] {
            for (std::int64_t i = first; i < options.count; i += cores) {
                const ShapeDrawing drawing =
                    draw_shape(options.seed, static_cast<std::uint64_t>(i), options.width, options.height);
                lockstep::write_jpeg(directory / "imgs" / (shape_name(i) + ".jpg"), drawing.image);
                lockstep::write_gif(directory / "masks" / (shape_name(i) + "_mask.gif"), drawing.mask);
            }
        }));
    for (std::future<void>& part : parts) part.get();
}

}  // namespace samples
