// Inference in a server thread while the main thread trains: the server computes with copies of the weights.
#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace ls = lockstep;

struct Net {
    ls::Linear fc1{1, 64}, fc2{64, 1};
    LOCKSTEP_MEMBERS(fc1, fc2)
    ls::Tensor forward(const ls::Tensor& x) { return fc2(ls::tanh(fc1(x))); }  // (N, 1) -> (N, 1)
};

std::mutex mutex;
std::shared_ptr<Net> served;  // guarded by the mutex
int status = 0;               // set by the server if it fails

void serve(const std::stop_token& stop, ls::Device device) try {
    const ls::NoGrad no_grad;  // applies to this thread
    double answer = 0;
    int answers = 0;
    for (bool last = false; !last; ++answers) {
        last = stop.stop_requested();
        mutex.lock();
        const std::shared_ptr<Net> net = served;
        mutex.unlock();
        answer = net->forward(ls::Tensor::full({1, 1}, 0.5, ls::DType::f32, device)).item();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the next request
    }
    std::printf("server: %d answers, the last: 0.5 squared is %.4f\n", answers, answer);
} catch (const std::exception& error) {
    std::fprintf(stderr, "server: %s\n", error.what());
    status = 1;
}

int main() try {
    ls::manual_seed(1);
    const ls::Tensor x = ls::Tensor::rand({512, 1}), y = x * x;
    ls::DataParallel model(Net{});
    ls::Adam adam(model, {.lr = 0.01});
    ls::Loader batches(model, ls::TensorDataset(x, y), {.batch_size = 64, .shuffle = true, .seed = 1});
    served = std::make_shared<Net>(*model);
    std::jthread server(serve, model.devices()[0]);  // stopped and joined by its destructor if training throws
    for (int epoch = 1; epoch <= 40; ++epoch) {
        for (auto& [input, target] : batches.epoch(epoch)) model.step(adam, input, target, ls::mse_loss);
        const std::lock_guard lock(mutex);
        served = std::make_shared<Net>(*model);  // a deep copy, made between two steps
    }
    server.request_stop();
    server.join();
    return status;
} catch (const std::exception& error) {
    std::fprintf(stderr, "serve_while_training: %s\n", error.what());
    return 1;
}
