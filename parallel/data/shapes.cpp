#include "lockstep/parallel/data/shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <system_error>

#include "lockstep/parallel/data/image_file.h"
#include "lockstep/parallel/data/internal/canvas.h"
#include "lockstep/parallel/data/internal/dice.h"
#include "lockstep/parallel/data/internal/for_each_row.h"
#include "lockstep/parallel/data/internal/scenery.h"
#include "lockstep/parallel/data/internal/vehicle.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using internal::Canvas;
using internal::CanvasColour;
using internal::Dice;

constexpr std::int64_t most_shapes = 100'000;

void require_sides(const char* call, int width, int height) {
    for (const int side : {width, height})
        if (side < 32 || side > 4096)
            throw InvalidArgument(
                fmt::format("{}: {} x {} (width x height) pixels; expected 32 to 4096 each", call, width, height));
}

/// What the camera adds: exposure, and noise in every pixel.
void expose(const std::vector<CanvasColour>& picture, std::vector<std::uint8_t>& pixels, Dice& dice) {
    const double exposure = dice.uniform(0.8, 1.15), haze = dice.uniform(0, 14), noise = dice.uniform(1.5, 9);
    const auto level = [&](double value, double grey) {
        const double noisy = exposure * value + haze + noise * (0.7 * grey + 0.7 * dice.bell());
        return static_cast<std::uint8_t>(std::clamp(noisy + 0.5, 0.0, 255.0));
    };
    for (std::size_t i = 0; i < picture.size(); ++i) {
        const double grey = dice.bell();
        pixels[3 * i] = level(picture[i].red, grey);
        pixels[3 * i + 1] = level(picture[i].green, grey);
        pixels[3 * i + 2] = level(picture[i].blue, grey);
    }
}

std::string shape_name(std::int64_t index) { return fmt::format("shape_{:05}", index); }

/// Makes the folder. Throws where it holds files that will not be written anew.
void prepare_folder(const std::filesystem::path& folder, const std::set<std::string>& names) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    std::filesystem::directory_iterator entry;
    if (!error) entry = std::filesystem::directory_iterator(folder, error);
    for (const std::filesystem::directory_iterator end; !error && entry != end; entry.increment(error))
        if (!names.contains(entry->path().filename()))
            throw InvalidArgument(
                fmt::format("write_shapes: {} contains another file, {}, which would become part of the set; expected "
                            "an empty directory",
                            folder.string(), entry->path().filename().string()));
    if (error)
        throw InvalidArgument(
            fmt::format("write_shapes: cannot create the directory {}: {}", folder.string(), error.message()));
}

}  // namespace

ShapeDrawing draw_shape(std::uint64_t seed, std::uint64_t index, int width, int height) {
    require_sides("draw_shape", width, height);
    Dice dice(seed, index, 1);
    Canvas canvas(width, height);
    const internal::VehiclePlace vehicle = internal::draw_vehicle(canvas, width, height, dice);
    std::vector<CanvasColour> picture = internal::draw_scenery(width, height, vehicle, dice);
    internal::cast_shadow(picture, width, height, vehicle, dice);
    internal::mirror_in_floor(picture, width, height, canvas, vehicle, dice);

    ShapeDrawing drawing{{height, width, ImageMode::rgb, {}, {}},
                         {height, width, ImageMode::palette, {}, {{0, 0, 0}, {255, 255, 255}}}};
    drawing.image.pixels.resize(3 * picture.size());
    drawing.mask.pixels.resize(picture.size());
    std::size_t at = 0;
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x, ++at) {
            const Canvas::Pixel over = canvas.pixel(x, y);
            picture[at] = (1 - over.cover) * picture[at] + over.cover * over.colour;
            drawing.mask.pixels[at] = over.cover >= 0.5 ? 1 : 0;
        }
    expose(picture, drawing.image.pixels, dice);
    return drawing;
}

void write_shapes(const std::filesystem::path& directory, const ShapesOptions& options) {
    if (options.count < 1 || options.count > most_shapes)
        throw InvalidArgument(fmt::format("write_shapes: {} images; expected 1 to {}", options.count, most_shapes));
    require_sides("write_shapes", options.width, options.height);
    std::set<std::string> images, masks;
    for (std::int64_t i = 0; i < options.count; ++i) {
        images.insert(shape_name(i) + ".jpg");
        masks.insert(shape_name(i) + "_mask.gif");
    }
    prepare_folder(directory / "imgs", images);
    prepare_folder(directory / "masks", masks);
    internal::for_each_row(options.count, 0, [&](std::int64_t i) {
        const ShapeDrawing drawing =
            draw_shape(options.seed, static_cast<std::uint64_t>(i), options.width, options.height);
        write_jpeg(directory / "imgs" / (shape_name(i) + ".jpg"), drawing.image);
        write_gif(directory / "masks" / (shape_name(i) + "_mask.gif"), drawing.mask);
    });
}

}  // namespace lockstep
