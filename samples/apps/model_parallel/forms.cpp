#include "lockstep/samples/apps/model_parallel/forms.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/runtime/record.h"
#include "lockstep/samples/apps/model_parallel/halves.h"
#include "lockstep/samples/apps/program/train.h"
#include "lockstep/samples/apps/unet/loss.h"

namespace forms {

namespace ls = lockstep;

namespace {

/// One training step. Returns its loss, for which it waits.
using Step = std::function<double()>;

/// Images whose bright pixels belong to class 1.
halves::Part made_batch(const Settings& settings) {
    ls::manual_seed(settings.options.seed + 1);
    const std::int64_t n = settings.batch_size, side = settings.image_size;
    const ls::Tensor images = ls::Tensor::randn({n, settings.net.channels, side, side});
    const auto* pixel = images.data<const float>();
    const ls::Tensor masks = ls::Tensor::zeros({n, side, side}, ls::DType::i64);
    auto* mask = masks.data<std::int64_t>();
    for (std::int64_t image = 0; image < n; ++image)
        for (std::int64_t i = 0; i < side * side; ++i)
            mask[image * side * side + i] = pixel[image * settings.net.channels * side * side + i] > 0.5F ? 1 : 0;
    return {images, masks};
}

halves::UNet made_net(const Settings& settings) {
    ls::manual_seed(settings.options.seed);
    return halves::UNet(settings.net, settings.cut);
}

/// Options of wrappers. Only processes have more than one reduction.
ls::EngineOptions engine_options(const Settings& settings, bool processes) {
    ls::EngineOptions engine = settings.options.engine_options();
    if (!processes) engine.reduction = ls::EngineOptions().reduction;
    return engine;
}

/// The same for the forms without a wrapper.
ls::ComputeSettings compute_settings(const Settings& settings) {
    const ls::EngineOptions engine = settings.options.engine_options();
    return {.deterministic = engine.deterministic, .convolution = engine.convolution, .allow_tf32 = engine.allow_tf32};
}

/// The optimizer of a model, and what the flags say about its steps.
struct Update {
    template <class Model>
    Update(Model& model, const Settings& settings)
        : optimizer(model,
                    {.lr = settings.options.lr.value_or(settings.options.default_lr),
                     .weight_decay = settings.options.weight_decay.value_or(settings.options.default_weight_decay)}),
          schedule(program::schedule_of(settings.options, optimizer, 1)),
          scaler({.enabled = settings.options.autocast() == ls::DType::f16}) {
        if (settings.options.clip > 0) clip.push_back({.max_norm = settings.options.clip});
    }
    void end_step() const {
        if (schedule) schedule->step();
    }

    ls::AdamW optimizer;
    std::unique_ptr<ls::LRSchedule> schedule;
    ls::GradScaler scaler;
    std::vector<ls::ClipGradNorm> clip;  ///< one or none
};

/// Time and memory of `make`, which creates a model, and of the steps that it returns.
template <class Make>
Measured measured(const char* name, const std::vector<ls::Device>& devices, int steps, Make make) {
    ls::synchronize_all();
    for (const ls::Device device : devices) {
        ls::release_cached_memory(device);
        ls::reset_peak_memory(device);
    }
    Measured result;
    result.name = name;
    const Step step = make();
    for (int i = -warm_up_steps; i < steps; ++i) {
        const auto began = std::chrono::steady_clock::now();
        result.loss = step();
        ls::synchronize_all();
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
        if (i >= 0) result.milliseconds.push_back(took.count());
    }
    for (const ls::Device device : devices) result.peak_bytes.push_back(ls::memory_stats(device).peak);
    return result;
}

/// Steps of a wrapper.
template <class Wrapper>
Step wrapped(std::shared_ptr<Wrapper> model, const Settings& settings) {
    return [model, update = std::make_shared<Update>(*model, settings), batch = made_batch(settings)] {
        const double loss = model
                                ->step(update->optimizer, batch.images, batch.masks, unet::SegmentationLoss(),
                                       {.clip = {update->clip.begin(), update->clip.end()}, .scaler = &update->scaler})
                                .item();
        update->end_step();
        return loss;
    };
}

/// Steps of the two halves without a wrapper, on their devices.
using Backward = ls::Tensor (*)(halves::UNet& net, const std::vector<halves::Part>& parts, ls::GradScaler& scaler);
Step in_halves(const Settings& settings, ls::Device encoder, ls::Device decoder, std::int64_t parts,
               Backward backward) {
    const auto net = std::make_shared<halves::UNet>(made_net(settings));
    net->encoder.to(encoder);
    net->decoder.to(decoder);
    const halves::Part batch = made_batch(settings);
    std::vector<halves::Part> cut;
    const std::int64_t rows = settings.batch_size / parts;
    for (std::int64_t i = 0; i < parts; ++i)
        cut.push_back({batch.images.slice(0, i * rows, (i + 1) * rows).to(encoder),
                       batch.masks.slice(0, i * rows, (i + 1) * rows).to(decoder)});
    return [net, update = std::make_shared<Update>(*net, settings), cut, backward, compute = compute_settings(settings),
            autocast = settings.options.autocast()] {
        const ls::ComputeScope scope(compute);
        const ls::Autocast precision(autocast);
        update->optimizer.zero_grad();
        const ls::Tensor loss = backward(*net, cut, update->scaler);
        if (!update->clip.empty()) {
            update->scaler.unscale_(update->optimizer);
            ls::clip_grad_norm_(update->optimizer, update->clip[0]);
        }
        update->scaler.step(update->optimizer);
        update->scaler.update();
        const double value = loss.item();
        update->end_step();
        return value;
    };
}

ls::Tensor one_after_the_other(halves::UNet& net, const std::vector<halves::Part>& parts, ls::GradScaler& scaler) {
    return halves::backward_serial(net, parts, unet::SegmentationLoss(), &scaler);
}
ls::Tensor both_at_once(halves::UNet& net, const std::vector<halves::Part>& parts, ls::GradScaler& scaler) {
    return halves::backward_pipelined(net, parts, unet::SegmentationLoss(), &scaler);
}

}  // namespace

double Measured::median() const {
    std::vector<double> sorted = milliseconds;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 != 0 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

Measured plain(const Settings& settings) {
    const ls::Device device = settings.devices[0];
    return measured("plain", {device}, settings.steps,
                    [&] { return in_halves(settings, device, device, 1, one_after_the_other); });
}

Measured none(const Settings& settings) {
    const ls::Device device = settings.devices[0];
    return measured("none", {device}, settings.steps, [&] {
        return wrapped(std::make_shared<ls::DataParallel<halves::UNet>>(made_net(settings), ls::Devices({device}),
                                                                        engine_options(settings, false)),
                       settings);
    });
}

Measured data_parallel(const Settings& settings) {
    return measured("dp", {settings.devices[0], settings.devices[1]}, settings.steps, [&] {
        return wrapped(std::make_shared<ls::DataParallel<halves::UNet>>(made_net(settings), settings.devices,
                                                                        engine_options(settings, false)),
                       settings);
    });
}

Measured distributed(const Settings& settings, ls::ProcessGroup& group) {
    const ls::Device device = settings.devices[0];
    Measured result = measured("ddp", {device}, settings.steps, [&] {
        return wrapped(std::make_shared<ls::DistributedDataParallel<halves::UNet>>(made_net(settings), group, device,
                                                                                   engine_options(settings, true)),
                       settings);
    });
    const ls::Tensor own = ls::Tensor::from(std::vector{static_cast<std::int64_t>(result.peak_bytes[0])}, {1});
    const ls::Tensor all = ls::Tensor::zeros({group.size()}, ls::DType::i64);
    group.all_gather(all, own);
    result.peak_bytes.clear();
    for (const std::int64_t bytes : all.to_vector<std::int64_t>())
        result.peak_bytes.push_back(static_cast<std::size_t>(bytes));
    return result;
}

Measured serial(const Settings& settings) {
    const ls::Device first = settings.devices[0], second = settings.devices[1];
    return measured("serial", {first, second}, settings.steps,
                    [&] { return in_halves(settings, first, second, 1, one_after_the_other); });
}

Measured pipelined(const Settings& settings) {
    const ls::Device first = settings.devices[0], second = settings.devices[1];
    return measured("pipelined", {first, second}, settings.steps,
                    [&] { return in_halves(settings, first, second, settings.microbatches, both_at_once); });
}

}  // namespace forms
