// Usage: what a rank has had of the processors, beside the time on the clock.
#pragma once

namespace lamina {

/// Since the process, the thread or the machine started; only differences mean anything. What the
/// system does not tell is -1.
struct Usage {
  double processor = 0;    ///< seconds of processors, all threads of this process together
  double switches = 0;     ///< times that one of them lost its processor though it wanted to go on
  double denied = -1;      ///< seconds that this thread was ready to run and had no processor
  double stolen = -1;      ///< seconds of this machine's processors that its host gave to others
  double processors = -1;  ///< seconds of all processors of this machine, whoever had them

  Usage& operator+=(const Usage& more);
  Usage operator-(const Usage& earlier) const;
};

/// Of the calling thread and its process; asks for no memory.
Usage usage();

}  // namespace lamina
