// DistributedDataParallel: one process per device. Without a launcher the program starts two ranks itself:
//
//     ddp_launch
//     lockstep-run --nproc-per-node 2 ./ddp_launch    # or torchrun --no-python, mpirun, srun
#include <lockstep/lockstep.h>

#include <cstdio>
#include <exception>
#include <optional>

namespace ls = lockstep;

struct Net {
    ls::Linear fc1{8, 32}, fc2{32, 1};
    LOCKSTEP_MEMBERS(fc1, fc2)
    ls::Tensor forward(const ls::Tensor& x) { return fc2(ls::relu(fc1(x))); }  // (N, 8) -> (N, 1)
};

void train(ls::ProcessGroup& group) {
    ls::manual_seed(1);  // the same data and weights on all ranks
    const ls::Tensor x = ls::Tensor::randn({512, 8});
    const ls::Tensor y = ls::mean(ls::square(x), {1}, true);

    // With the number of shards fixed, 1, 2 or 4 ranks compute the same bits.
    ls::DistributedDataParallel model(Net{}, group, {.shards = 4});
    ls::Adam adam(model, {.lr = 0.01});
    // The batch size counts the rows of all ranks; each rank reads the rows of its shards.
    ls::Loader batches(model, ls::TensorDataset(x, y), {.batch_size = 64, .shuffle = true, .seed = 1});
    std::optional<ls::StepLoss> loss;
    for (int epoch = 1; epoch <= 20; ++epoch)
        for (auto& [input, target] : batches.epoch(epoch)) loss = model.step(adam, input, target, ls::mse_loss);

    model.engine().verify_replicas();  // throws if a single bit differs between two ranks
    std::printf("rank %d of %d: loss %.9g\n", group.rank(), group.size(), loss->item());
    ls::save(model, "ddp_launch.safetensors");  // called by all, written by rank 0
}

int main() try {
    if (ls::rank_info().launcher == ls::Launcher::none) {
        ls::launch(2, train);  // before this process uses a device; returns when both ranks have ended
    } else {
        ls::ProcessGroup group;  // waits for the other ranks
        train(group);
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "ddp_launch: %s\n", error.what());
    return 1;
}
