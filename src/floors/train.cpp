// Optimizers, schedules, data in memory, the trainer, compiled once.
#include <lamina/train/impl.hpp>
