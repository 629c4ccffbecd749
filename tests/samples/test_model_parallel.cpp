// model_parallel: the gradients of two halves on two devices, what is copied between them, files, and the program.
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/internal/copy_count.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/samples/apps/model_parallel/halves.h"
#include "lockstep/samples/apps/unet/loss.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

const Device first = Device::cpu(0), second = Device::cpu(1);
constexpr unet::Options small{.width = 3};
constexpr std::int64_t rows = 8, side = 36;

/// The same parameters on any device.
halves::UNet made(Device decoder, halves::Cut cut = halves::Cut::arithmetic) {
    manual_seed(7);
    halves::UNet net(small, cut);
    net.encoder.to(first);
    net.decoder.to(decoder);
    return net;
}

std::vector<halves::Part> parts(Device decoder, std::int64_t count) {
    manual_seed(8);
    const Tensor images = Tensor::randn({rows, 3, side, side});
    std::vector<std::int64_t> classes;
    for (std::int64_t i = 0; i < rows * side * side; ++i) classes.push_back(i * i % 7 % 2);
    const Tensor masks = Tensor::from(classes, {rows, side, side});
    std::vector<halves::Part> cut;
    const std::int64_t size = rows / count;
    for (std::int64_t i = 0; i < count; ++i)
        cut.push_back({images.slice(0, i * size, (i + 1) * size).to(first),
                       masks.slice(0, i * size, (i + 1) * size).to(decoder)});
    return cut;
}

struct Outcome {
    double loss = 0;
    std::map<std::string, std::vector<float>> gradients, buffers;
    bool operator==(const Outcome&) const = default;
};

Outcome outcome(halves::UNet& net, const Tensor& loss) {
    Outcome found;
    found.loss = loss.item();
    for (const NamedTensor& named : named_tensors(net)) {
        const Tensor& tensor = named.member->tensor();
        if (named.is_parameter) {
            CHECK(tensor.grad().device() == tensor.device());
            found.gradients[named.name] = tensor.grad().to_vector<float>();
        } else if (tensor.dtype() == DType::f32) {
            found.buffers[named.name] = tensor.to_vector<float>();
        }
    }
    return found;
}

/// Outcome of the halves on one device or on two, with the batch in `count` parts.
Outcome serial(Device decoder, std::int64_t count, halves::Cut cut = halves::Cut::arithmetic) {
    halves::UNet net = made(decoder, cut);
    return outcome(net, halves::backward_serial(net, parts(decoder, count), unet::SegmentationLoss()));
}
Outcome pipelined(Device decoder, std::int64_t count, halves::Cut cut = halves::Cut::arithmetic) {
    halves::UNet net = made(decoder, cut);
    return outcome(net, halves::backward_pipelined(net, parts(decoder, count), unet::SegmentationLoss()));
}

double relative_distance(const Outcome& a, const Outcome& b) {
    double difference = 0, norm = 0;
    for (const auto& [name, values] : a.gradients)
        for (std::size_t i = 0; i < values.size(); ++i) {
            difference += std::pow(double{values[i]} - b.gradients.at(name)[i], 2);
            norm += std::pow(double{values[i]}, 2);
        }
    return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("the two halves have the parameters of PyTorch's U-Net at full width") {
    halves::UNet net(unet::Options{});
    std::int64_t parameters = 0;
    for (const NamedTensor& named : named_tensors(net))
        if (named.is_parameter) parameters += named.member->tensor().numel();
    CHECK(parameters == 31'037'698);
}

TEST_CASE("two halves compute the same as the whole U-Net") {
    for (const halves::Cut cut : {halves::Cut::arithmetic, halves::Cut::parameters}) {
        manual_seed(7);
        unet::UNet whole(small);
        to(whole, first);
        halves::UNet net = made(second, cut);
        std::map<std::string, Tensor> values;
        for (const NamedTensor& named : named_tensors(whole)) values[named.name] = named.member->tensor();
        for (const NamedTensor& named : named_tensors(net)) {
            const Tensor& own = named.member->tensor();
            const NoGrad no_grad;
            own.copy_(values.at(named.name.substr(named.name.find('.') + 1)));
        }
        const Tensor x = parts(second, 1)[0].images;
        CHECK(net.forward(x).to_vector<float>() == whole.forward(x).to_vector<float>());
    }
}

TEST_CASE("the encoder's share is the sum of its layers, and each cut halves its quantity") {
    for (const halves::Cut cut : {halves::Cut::arithmetic, halves::Cut::parameters})
        for (const unet::Options& options : {unet::Options{}, unet::Options{.classes = 5, .width = 6}}) {
            halves::UNet net(options, cut);
            // Positions of a layer's output, as a fraction of the image's.
            const auto positions_of = [](const std::string& name) {
                for (const auto& [part, share] : {std::pair("down1", 0.25),
                                                  {"down2", 1 / 16.0},
                                                  {"down3", 1 / 64.0},
                                                  {"down4", 1 / 256.0},
                                                  {"up1", 1 / 64.0},
                                                  {"up2", 1 / 16.0},
                                                  {"up3", 0.25}})
                    if (name.find(part) != std::string::npos) return share;
                return 1.0;
            };
            double parameters = 0, all_parameters = 0, products = 0, all_products = 0;
            for (const NamedTensor& named : named_tensors(net)) {
                if (!named.is_parameter) continue;
                const Tensor& tensor = named.member->tensor();
                const auto count = static_cast<double>(tensor.numel());
                // A transposed convolution of 2 x 2 with stride 2 has one of its four products at each position.
                const double once =
                    tensor.dims() != 4 ? 0 : count * positions_of(named.name) / (tensor.size(2) == 2 ? 4 : 1);
                const bool encodes = named.name.starts_with("encoder.");
                parameters += encodes ? count : 0, all_parameters += count;
                products += encodes ? once : 0, all_products += once;
            }
            const halves::Shares found = halves::shares(options, cut);
            CHECK(found.parameters == Approx(parameters / all_parameters).epsilon(1e-12));
            CHECK(found.multiply_adds == Approx(products / all_products).epsilon(1e-12));
        }
    const halves::Shares by_arithmetic = halves::shares({}, halves::Cut::arithmetic),
                         by_parameters = halves::shares({}, halves::Cut::parameters);
    CHECK(std::abs(by_arithmetic.multiply_adds - 0.5) < std::abs(by_parameters.multiply_adds - 0.5));
    CHECK(std::abs(by_parameters.parameters - 0.5) < std::abs(by_arithmetic.parameters - 0.5));
    CHECK(std::abs(by_arithmetic.multiply_adds - 0.5) < 0.15);
    CHECK(std::abs(by_parameters.parameters - 0.5) < 0.15);
}

TEST_CASE("gradients of two halves in sequence are bit-identical to one device") {
    CHECK(serial(second, 1) == serial(first, 1));
    CHECK(serial(second, 4) == serial(first, 4));
    CHECK(serial(second, 1, halves::Cut::parameters) == serial(first, 1, halves::Cut::parameters));
}

TEST_CASE("gradients of the pipeline are bit-identical to one device with the same microbatches") {
    const Outcome expected = serial(first, 4);
    CHECK(pipelined(second, 4) == expected);
    CHECK(pipelined(first, 4) == expected);
    CHECK(pipelined(second, 1) == serial(first, 1));
    CHECK(pipelined(second, 8) == serial(first, 8));
    CHECK(pipelined(second, 4, halves::Cut::parameters) == serial(first, 4, halves::Cut::parameters));
    CHECK_FALSE(expected.gradients == serial(first, 1).gradients);  // BatchNorm gets different batches
}

TEST_CASE("without layers that mix rows, the pipeline has the whole batch's gradients within rounding") {
    const auto mean_of_rows = [](const Tensor& logits, const Tensor& masks) { return cross_entropy(logits, masks); };
    halves::UNet whole = made(first), cut = made(second);
    set_training(whole, false);
    set_training(cut, false);
    const Outcome expected = outcome(whole, halves::backward_serial(whole, parts(first, 1), mean_of_rows));
    const Outcome found = outcome(cut, halves::backward_pipelined(cut, parts(second, 4), mean_of_rows));
    CHECK(found.loss == Approx(expected.loss).epsilon(1e-6));
    CHECK(relative_distance(expected, found) < 1e-5);
}

TEST_CASE("activations and their gradients are copied once, and nothing else is copied") {
    halves::UNet net = made(second);
    const auto batch = parts(second, 4);
    (void)halves::backward_pipelined(net, batch, unet::SegmentationLoss());
    synchronize_all();
    copy_count::reset();
    (void)halves::backward_pipelined(net, batch, unet::SegmentationLoss());
    synchronize_all();
    const auto copies = copy_count::between_devices();
    REQUIRE(copies.size() == 3);
    CHECK(copies.at({second, Device::host()}).copies ==
          4 * 2);  // for cross-entropy and dice: whether a mask has an invalid class
    const auto over = copies.at({first, second}), back = copies.at({second, first});
    CHECK(over.copies == 4 * halves::handed_over(halves::Cut::arithmetic));
    CHECK(back.copies == 4 * halves::handed_over(halves::Cut::arithmetic));
    // Floats of x1, x2, x3 and of the output of up1, of two images; layouts of a backend may pad channels.
    const std::uint64_t least = 4 * 2 * sizeof(float) * (3 * 36 * 36 + 6 * 18 * 18 + 12 * 9 * 9 + 24 * 4 * 4);
    CHECK(back.bytes >= least);
    CHECK(over.bytes >= least);
    CHECK(over.bytes < 16 * least);
}

TEST_CASE("the host does not wait for devices that a microbatch passes") {
    if (lockstep::test::serial()) return;
    halves::UNet net = made(second);
    const auto batch = parts(second, 4);
    halves::UNet before = net;  // includes the wait that follows manual_seed once
    (void)halves::backward_pipelined(before, batch, unet::SegmentationLoss());
    synchronize_all();
    lockstep::test::Gate gate;
    for (const Device device : {first, second})
        Stream::of(device).run("held", {}, [&gate](const ExecContext&) { gate.pass(); });
    const Tensor loss = halves::backward_pipelined(net, batch, unet::SegmentationLoss());  // returns in time, otherwise
                                                                                           // takes a minute
    CHECK_FALSE(Stream::of(first).idle());
    CHECK_FALSE(Stream::of(second).idle());
    gate.open();
    CHECK(outcome(net, loss) == serial(first, 4));
}

TEST_CASE("the decoder continues with a microbatch while the encoder waits before the next one") {
    if (lockstep::test::serial()) return;
    halves::UNet net = made(second);
    const auto batch = parts(second, 4);
    halves::UNet before = net;
    (void)halves::backward_pipelined(before, batch, unet::SegmentationLoss());
    synchronize_all();
    lockstep::test::Gate gate;
    int ways_back = 0, losses = 0;
    // The last gradient of a backward pass: work enqueued on the encoder's device now precedes the third forward pass.
    std::get<0>(net.encoder.inc.double_conv.layers).weight->register_hook([&](const Tensor&) {
        if (++ways_back == 1) Stream::of(first).run("held", {}, [&gate](const ExecContext&) { gate.pass(); });
    });
    Event second_loss(second);
    const auto loss = [&](const Tensor& logits, const Tensor& masks) {
        Loss own = unet::SegmentationLoss()(logits, masks);
        if (++losses == 2) Stream::of(second).record(second_loss);
        return own;
    };
    const Tensor sum = halves::backward_pipelined(net, batch, loss);
    CHECK(losses == 4);
    CHECK(comes_true([&] { return second_loss.done(); }));
    gate.open();
    CHECK(outcome(net, sum) == serial(first, 4));
}

TEST_CASE("weights of halves on two devices are saved to a file and loaded on other devices") {
    const TemporaryDirectory place;
    halves::UNet net = made(second);
    save(net, place / "halves.safetensors");
    manual_seed(99);
    halves::UNet other(small);
    to(other.encoder, second);
    to(other.decoder, first);
    load(other, place / "halves.safetensors");
    CHECK(other.encoder.up1->up->weight->device() == second);
    const auto expected = named_tensors(net), found = named_tensors(other);
    for (std::size_t i = 0; i < expected.size(); ++i)
        if (expected[i].is_parameter)
            CHECK(found[i].member->tensor().to_vector<float>() == expected[i].member->tensor().to_vector<float>());
}

TEST_CASE("a model on two devices cannot be wrapped") {
    const std::string said = message_of<InvalidArgument>([] {
        DataParallel<halves::UNet> model(made(second), Devices({first, second}));
    });
    CHECK(said.starts_with("module: parameters and buffers are on several devices: "));
    CHECK(said.ends_with(" on cpu:1; expected one device"));
}

TEST_CASE("model_parallel prints one line per form, with its time, memory and loss") {
    const TemporaryDirectory place;
    const ProgramRun run = run_program(
        place,
        "model_parallel --batch-size 4 --microbatches 2 --width 4 --image-size 32 --steps 3 --json figures.json");
    CHECK(run.err.empty());
    REQUIRE(run.status == 0);
    const nlohmann::json figures = nlohmann::json::parse(get_bytes(place / "figures.json"));
    std::map<std::string, nlohmann::json> forms;
    for (const auto& form : figures.at("forms")) {
        const auto name = form.at("form").get<std::string>();
        forms[name] = form;
        CHECK(run.out.find("\n" + name + " ") != std::string::npos);
        CHECK(form.at("milliseconds").size() == 3);
        CHECK(form.at("median_milliseconds").get<double>() > 0);
    }
    REQUIRE(forms.size() == 6);
    CHECK_THAT(run.out, contains("serial and pipelined, split by arithmetic: cpu:0 has 90 % of the parameters and "));
    CHECK(figures.at("first_share_of_parameters").get<double>() == Approx(0.9).margin(0.01));
    const auto loss = [&](const char* form) { return forms.at(form).at("loss").get<double>(); };
    for (const char* form : {"plain", "dp", "ddp", "serial"}) CHECK(loss(form) == Approx(loss("none")).epsilon(1e-3));
    CHECK(loss("dp") == loss("ddp"));
    CHECK(loss("plain") == loss("serial"));
    CHECK(loss("pipelined") == Approx(loss("none")).epsilon(0.1));
    const auto peak = [&](const char* form) { return forms.at(form).at("peak_bytes").get<std::vector<double>>(); };
    for (const char* form : {"dp", "ddp", "serial", "pipelined"}) REQUIRE(peak(form).size() == 2);
    for (const double bytes : peak("serial")) CHECK(bytes < peak("plain")[0]);
    CHECK(peak("serial")[0] + peak("serial")[1] < 1.3 * peak("plain")[0]);
    CHECK(peak("pipelined")[1] < peak("serial")[1]);
}

TEST_CASE("model_parallel reports bad arguments in one line") {
    const TemporaryDirectory place;
    struct Wrong {
        const char* flags;
        const char* said;
    };
    for (const Wrong& wrong : std::vector<Wrong>{
             {"--nonsense", "--nonsense"},
             {"--batch-size 6 --microbatches 4", "--batch-size: 6 images; expected a multiple of --microbatches (4)"},
             {"--microbatches 0", "--microbatches"},
             {"--image-size 15", "--image-size"},
             {"--split layers", "--split"},
             {"--devices cpu:0", "--devices: list has 1 device; expected two, such as cpu:0,cpu:1"},
             {"--devices cpu:0,cpu:77", "--devices: device cpu:77"},
             {"--devices tape", "--devices: "}}) {
        CAPTURE(wrong.flags);
        const ProgramRun run = run_program(place, std::string("model_parallel ") + wrong.flags);
        CHECK(run.status == 2);
        CHECK(run.lines_of_err() == 1);
        CHECK(run.err.find(wrong.said) != std::string::npos);
    }
    CHECK(run_program(place, "model_parallel --help").status == 0);
}
