# The few functions that CMakeLists.txt is written with.

# lamina_choice(NAME "help"): a cached option with the values AUTO, ON and OFF.
function(lamina_choice name help)
  set(${name} AUTO CACHE STRING "${help} (AUTO, ON, OFF)")
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT ${name} MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|1|0)$")
    message(FATAL_ERROR "${name}=${${name}}: expected AUTO, ON or OFF")
  endif()
endfunction()

# lamina_look_for(ONEDNN OneDNN args...): find_package(OneDNN args...) as LAMINA_ONEDNN wishes;
# sets LAMINA_HAS_ONEDNN.
macro(lamina_look_for what package)
  set(LAMINA_HAS_${what} OFF)
  if(LAMINA_${what} STREQUAL "AUTO")
    find_package(${package} QUIET ${ARGN})
  elseif(LAMINA_${what})
    find_package(${package} REQUIRED ${ARGN})
  endif()
  if(${package}_FOUND AND LAMINA_${what})
    set(LAMINA_HAS_${what} ON)
  endif()
  lamina_report(${what})
endmacro()

function(lamina_report what)
  if(LAMINA_HAS_${what})
    message(STATUS "Lamina: ${what} is built in")
  else()
    message(STATUS "Lamina: ${what} is not built in (LAMINA_${what}=${LAMINA_${what}})${ARGN}")
  endif()
endfunction()

# lamina_one_of(files HAS REAL regex ABSENT regex): keeps in the list `files` either what matches
# REAL or, where HAS is off, what matches ABSENT; files that match neither stay.
function(lamina_one_of files has)
  cmake_parse_arguments(ARG "" "REAL;ABSENT" "" ${ARGN})
  set(kept)
  foreach(file IN LISTS ${files})
    if(file MATCHES "${ARG_ABSENT}\\.cpp$")
      if(NOT ${has})
        list(APPEND kept ${file})
      endif()
    elseif(${has} OR NOT file MATCHES "${ARG_REAL}\\.cpp$")
      list(APPEND kept ${file})
    endif()
  endforeach()
  set(${files} ${kept} PARENT_SCOPE)
endfunction()

# Our own warnings, on our own targets only.
function(lamina_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-Wall -Wextra -Wshadow>
    # g++ 12 warns of overlapping copies inside its own std::string (PR 105329).
    $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
    $<$<AND:$<BOOL:${LAMINA_WERROR}>,$<CXX_COMPILER_ID:GNU,Clang,AppleClang>>:-Werror>)
endfunction()

# lamina_component(name SOURCES files... PUBLIC libraries... PRIVATE libraries... OPTIONS flags...):
# the static library lamina_<name>, alias lamina::<name>.
function(lamina_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE;OPTIONS" ${ARGN})
  if(ARG_SOURCES)
    add_library(lamina_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(lamina_${name} PUBLIC lamina_headers ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
    target_compile_options(lamina_${name} PRIVATE ${ARG_OPTIONS})
    target_include_directories(lamina_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    set_target_properties(lamina_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    lamina_warnings(lamina_${name})
  else()
    add_library(lamina_${name} INTERFACE)
    target_link_libraries(lamina_${name} INTERFACE lamina_headers ${ARG_PUBLIC})
  endif()
  set_target_properties(lamina_${name} PROPERTIES EXPORT_NAME ${name})
  add_library(lamina::${name} ALIAS lamina_${name})
endfunction()

# lamina_program(name SOURCES files... LINK libraries...): a program that uses the library.
function(lamina_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE lamina::lamina ${ARG_LINK})
  lamina_warnings(${name})
endfunction()
