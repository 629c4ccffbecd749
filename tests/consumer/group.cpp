// Process groups and their launcher without the rest (lockstep::comm): must load no library for images or other files.
#include <lockstep/parallel/comm/launcher.h>
#include <lockstep/parallel/comm/process_group.h>

#include <cstdio>

int main(int count, char** words) {
    if (count > 1) {
        lockstep::ProcessGroup group({.backend = "shm"});
        const lockstep::Tensor sum = lockstep::Tensor::full({3}, group.rank() + 1);
        group.all_reduce(sum);
        return sum.to_vector<float>() == std::vector<float>(3, 3.0F) ? 0 : 1;
    }
    const lockstep::LaunchResult result = lockstep::launch({.command = {words[0], "rank"}, .processes = 2});
    std::puts(result.str().c_str());
    return result.success() ? 0 : 1;
}
