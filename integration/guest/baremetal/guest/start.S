/* Entry of a PVH guest (Xen "PVH boot" ABI): 32-bit protected mode, flat segments, no paging, no
   interrupts, %ebx points to struct hvm_start_info. */

#define STACK_SIZE 0x4000
#define CODE_SELECTOR 0x08
#define DATA_SELECTOR 0x10
#define INTERRUPT_FLAG 0x200

    .section .note.pvh, "a", @note
    .balign 4
    .long 4                     /* size of the name */
    .long 8                     /* size of the descriptor: an address of a 64-bit ELF file */
    .long 18                    /* XEN_ELFNOTE_PHYS32_ENTRY */
    .asciz "Xen"
    .long start, 0

    .section .text.start, "ax"
    .code32
    .globl start
start:
    cli
    cld
    movl $stack_top, %esp
    lgdt gdt_pointer
    ljmp $CODE_SELECTOR, $1f
1:  movl $DATA_SELECTOR, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    pushl %ebx
    call main
    cli
2:  hlt
    jmp 2b

/* One stub of 16 bytes for each vector: the exceptions, the two PICs, the messages. */
    .text
    .balign 16
    .globl stubs
stubs:
    .set vector, 0
    .rept 0x50
    pushl $vector
    jmp interrupt
    .balign 16
    .set vector, vector + 1
    .endr

interrupt:
    pushal
    movl 32(%esp), %eax         /* the vector */
    movl 36(%esp), %edx         /* the interrupted address, or an error code */
    movl 40(%esp), %ecx         /* the address, if there is an error code */
    pushl %ecx
    pushl %edx
    pushl %eax
    call on_interrupt
    addl $12, %esp
    popal
    addl $4, %esp
    /* IRETL in other words, since KVM without hardware virtualization emulates it in real mode only. The
       interrupted code had interrupts on; STI holds them off for one instruction more. */
    pushl 8(%esp)
    andl $~INTERRUPT_FLAG, (%esp)
    popfl
    sti
    ret $8

    .section .rodata
    .balign 8
gdt:
    .quad 0
    .quad 0x00cf9b000000ffff    /* code: 4 GiB from 0 */
    .quad 0x00cf93000000ffff    /* data: the same */
gdt_pointer:
    .word . - gdt - 1
    .long gdt

    .bss
    .balign 16
    .space STACK_SIZE
stack_top:

    .section .note.GNU-stack, "", @progbits
