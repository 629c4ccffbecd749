// Training inside a program with frames, such as a game or a simulation. A step only enqueues work for the devices, so
// frames are drawn while they compute. No call waits for a device.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <thread>

namespace ls = lockstep;
using Clock = std::chrono::steady_clock;

struct Net {
    ls::Linear fc1{1, 64}, fc2{64, 1};
    LOCKSTEP_MEMBERS(fc1, fc2)
    ls::Tensor forward(const ls::Tensor& x) { return fc2(ls::tanh(fc1(x))); }  // (N, 1) -> (N, 1)
};

struct Game {
    int frames = 0;
    double position = 0;
    void draw_frame() {
        position = std::sin(0.01 * ++frames);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the next frame
    }
};

int main() try {
    ls::manual_seed(1);
    const ls::Tensor x = ls::Tensor::rand({512, 1}), y = x * x;
    ls::DataParallel model(Net{});
    ls::Adam adam(model, {.lr = 0.01});
    ls::Loader batches(model, ls::TensorDataset(x, y), {.batch_size = 64, .shuffle = true, .seed = 1});
    Game game;
    int steps = 0;
    double longest = 0, last = 0;
    for (int epoch = 1; epoch <= 25; ++epoch)
        for (auto& [input, target] : batches.epoch(epoch)) {
            const auto begin = Clock::now();
            const ls::StepLoss loss = model.step(adam, input, target, ls::mse_loss);
            const double taken = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
            if (++steps > 3) longest = std::max(longest, taken);  // the first steps trace the program
            do game.draw_frame();
            while (!loss.ready());
            last = loss.item();  // does not wait
        }
    std::printf("%d steps during %d frames; the longest call took %.3f ms; loss %.6f\n", steps, game.frames, longest,
                last);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "train_between_frames: %s\n", error.what());
    return 1;
}
