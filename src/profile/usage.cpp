// What Linux tells of a process, a thread and a machine.
#include <lamina/profile/usage.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

namespace lamina {

namespace {

/// The beginning of a file of /proc, without asking for memory; empty where there is none.
template <int Size>
const char* read(const char* path, char (&text)[Size]) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t n = file < 0 ? 0 : ::read(file, text, Size - 1);
  if (file >= 0) ::close(file);
  text[n > 0 ? n : 0] = 0;
  return text;
}

/// The thread's second number is how long it stood in the queue of a processor, in ns.
double denied() {
  char text[128];
  double ran = 0, stood = 0;
  return std::sscanf(read("/proc/thread-self/schedstat", text), "%lf %lf", &ran, &stood) == 2
             ? stood * 1e-9
             : -1;
}

/// The first line is of all processors: user, nice, system, idle, iowait, irq, softirq, steal.
void read_machine(Usage& usage) {
  char text[256];
  double t[8];
  if (std::sscanf(read("/proc/stat", text), "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1],
                  &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]) != 8)
    return;
  const double tick = 1.0 / double(sysconf(_SC_CLK_TCK));
  usage.stolen = t[7] * tick, usage.processors = 0;
  for (const double part : t) usage.processors += part * tick;
}

}  // namespace

Usage usage() {
  Usage now;
  timespec t = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  now.processor = double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
  rusage all = {};
  getrusage(RUSAGE_SELF, &all);
  now.switches = double(all.ru_nivcsw);
  now.denied = denied();
  read_machine(now);
  return now;
}

}  // namespace lamina
