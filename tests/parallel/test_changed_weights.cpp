// Backward of a forward after writes to its weights, or to other tensors that backward reads: refused by name, as in
// PyTorch.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

ls::Tensor loss_of(const ls::Tensor& output, const ConvNetBatch& batch) {
    return ls::nll_loss(output, batch.labels.to(output.device())).value();
}

std::string changed(const std::string& name) {
    return "backward: " + name + " was changed after the forward that needs";
}

bool begins(const std::string& text, const std::string& part) { return text.rfind(part, 0) == 0; }

struct Half {
    ls::Linear fc{4, 4};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return ls::tanh(fc(x)); }
};

}  // namespace

TEST_CASE("any write to weights between forward and backward is an error that names the tensor") {
    ls::manual_seed(31);
    const lockstep::test::TemporaryDirectory folder;
    const ConvNetBatch batch = make_batch(7);
    for (const int count : {1, 2, 3}) {
        ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(count));
        ls::SGD sgd(model, {.lr = 0.1});
        const std::string file = (folder / "weights.safetensors").string();
        ls::save(model, file);
        const ConvNet other;
        loss_of(model(batch.images), batch).backward();
        const std::pair<const char*, std::function<void()>> writes[] = {
            {"optimizer", [&] { sgd.step(); }},
            {"step", [&] { model.step(sgd, batch.images, batch.labels, ls::nll_loss); }},
            {"load", [&] { ls::load(model, file); }},
            {"copy_",
             [&] {
                 const ls::NoGrad no_grad;
                 model->fc2.weight->copy_(ls::Tensor::full({5, 10}, 0.5));
             }},
            {"fill_",
             [&] {
                 const ls::NoGrad no_grad;
                 model->fc2.weight->fill_(0.25);
             }},
            {"a view",
             [&] {
                 const ls::NoGrad no_grad;
                 model->fc2.weight->select(0, 2).zero_();
             }},
            {"assigning the model", [&] { *model = other; }},
            {"assigning a layer", [&] { model->fc2 = other.fc2; }},
            {"assigning a parameter", [&] { model->fc2.weight = other.fc2.weight; }},
        };
        for (const auto& [what, write] : writes) {
            INFO(what << ", " << count << " devices");
            const ls::Tensor loss = loss_of(model(batch.images), batch);
            write();
            const std::string text = message_of<ls::InvalidArgument>([&] { loss.backward(); });
            INFO(text);
            CHECK((begins(text, changed("fc2.weight")) || begins(text, changed("fc1.weight"))));
            CHECK(text.find("; call backward() before the change, or call forward again") != std::string::npos);
            sgd.zero_grad();
            loss_of(model(batch.images), batch).backward();  // still usable, as the optimizer's step requires
        }
        model.engine().verify_replicas();
    }
}

TEST_CASE("tensors that backward does not read may be written") {
    ls::manual_seed(32);
    const ConvNetBatch batch = make_batch(6);
    for (const int count : {1, 3}) {
        ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(count));
        const auto expected = [&] {
            loss_of(model(batch.images), batch).backward();
            return gradients_of(*model);
        }();
        ls::SGD(model, {.lr = 0.1}).zero_grad();
        const ls::Tensor loss = loss_of(model(batch.images), batch);
        {
            const ls::NoGrad no_grad;
            model->fc1.bias->tensor().fill_(3);
            batch.images.clone().zero_();
        }
        loss.backward();
        CHECK(relative_error(gradients_of(*model), expected) == 0);
    }
}

TEST_CASE("backward uses the inputs of forward, even if they are overwritten") {
    ls::manual_seed(33);
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    loss_of(model(batch.images), batch).backward();
    const auto expected = gradients_of(*model);
    ls::SGD(model, {.lr = 0.1}).zero_grad();
    const ls::Tensor loss = loss_of(model(batch.images), batch);
    batch.images.zero_();
    loss.backward();
    CHECK(relative_error(gradients_of(*model), expected) == 0);
}

TEST_CASE("a GAN: the discriminator's step between the generator's forward and backward is rejected") {
    ls::manual_seed(34);
    ls::DataParallel<Half> generator(Half{}, cpu_devices(2)), discriminator(Half{}, cpu_devices(3));
    ls::SGD of_generator(generator, {.lr = 0.1}), of_discriminator(discriminator, {.lr = 0.1});
    const ls::Tensor noise = ls::Tensor::randn({6, 4}), real = ls::Tensor::randn({6, 4});
    const auto score = [&](const ls::Tensor& x) { return ls::mean(ls::square(discriminator(x))); };
    for (int i = 0; i < 3; ++i) {
        of_discriminator.zero_grad();
        ls::Tensor fake = generator(noise);
        (score(real) - score(fake.detach())).backward();
        of_discriminator.step();
        of_generator.zero_grad();
        score(fake).backward();
        of_generator.step();
    }
    const ls::Tensor fake = generator(noise);
    const ls::Tensor judged = score(fake);
    of_discriminator.step();
    const std::string text = message_of<ls::InvalidArgument>([&] { judged.backward(); });
    CHECK(begins(text, changed("fc.weight")));
}

namespace {
struct TwoNorms {
    ls::Linear in{4, 3}, out{3, 2};
    ls::BatchNorm2d still{3}, moving{3};
    bool by_variance = false;
    LOCKSTEP_MEMBERS(in, out, still, moving)
    ls::Tensor forward(const ls::Tensor& x) const {
        const ls::Tensor y = moving(still(in(x).reshape({-1, 3, 1, 1}))).flatten(1);
        return ls::tanh(out(by_variance ? y * still.running_var->tensor() : y));
    }
    void describe(ls::Signature& key) const { key.add(by_variance); }
};
}  // namespace

TEST_CASE("if other forwards change running statistics, gradients are those of the forward or an error") {
    ls::manual_seed(35);
    const ls::Tensor a = ls::Tensor::randn({8, 4}), b = ls::Tensor::randn({8, 4});
    const TwoNorms net;
    const auto gradients = [&](ls::DataParallel<TwoNorms>& model, const ls::Tensor& loss) {
        loss.backward();
        auto found = gradients_of(*model);
        ls::SGD(model, {.lr = 0.1}).zero_grad();
        return found;
    };
    for (const int count : {1, 2})
        for (const bool trains : {true, false}) {
            ls::DataParallel<TwoNorms> model(net, cpu_devices(count)), twin(net, cpu_devices(count));
            ls::set_training(model->still, trains);
            ls::set_training(twin->still, trains);
            const auto expected = gradients(twin, ls::sum(twin(a)));
            const ls::Tensor first = ls::sum(model(a)), second = ls::sum(model(b));
            ls::set_training(model->still, true);
            (void)model(b);
            CHECK(relative_error(gradients(model, first), expected) == 0);
            second.backward();
            model.engine().verify_replicas();

            ls::set_training(model->still, false);
            model->by_variance = true;
            const ls::Tensor output = model(a), another = model(a);
            ls::sum(another).backward();  // the other layer's statistics changed
            ls::set_training(model->still, true);
            model->by_variance = false;
            (void)model(b);
            const std::string text = message_of<ls::InvalidArgument>([&] { ls::sum(output).backward(); });
            INFO(text);
            CHECK(begins(text, changed("still.running_var")));
        }
}

namespace {
struct Scaled {
    ls::Linear fc{4, 3};
    ls::Tensor factor = ls::Tensor::full({3}, 2);
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return fc(x) * factor; }
};
}  // namespace

TEST_CASE("a constant that forward captured") {
    ls::DataParallel<Scaled> model(Scaled{}, cpu_devices(2));
    const ls::Tensor x = ls::Tensor::randn({4, 4});
    const ls::Tensor output = model(x);
    model->factor.fill_(3);
    (void)model(x);
    const std::string text = message_of<ls::InvalidArgument>([&] { ls::sum(output).backward(); });
    INFO(text);
    CHECK(begins(text, changed("a constant of shape (3,) that mul reads")));
}

TEST_CASE("16-bit copies are those of the forward") {
    ls::manual_seed(36);
    const ConvNetBatch batch = make_batch(6);
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2), {.autocast = ls::DType::bf16});
    loss_of(model(batch.images), batch).backward();
    const auto expected = gradients_of(*model);
    ls::SGD(model, {.lr = 0.1}).zero_grad();
    const ls::Tensor loss = loss_of(model(batch.images), batch);
    {
        const ls::NoGrad no_grad;
        model->fc2.weight->fill_(0.25);
    }
    loss.backward();  // as in PyTorch: autograd has saved the copies
    CHECK(relative_error(gradients_of(*model), expected) == 0);
}
