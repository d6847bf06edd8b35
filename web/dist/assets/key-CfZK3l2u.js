import{a3 as s,a7 as c}from"./index-C-l1uhPm.js";const k=Symbol("NaN");function N(r,e,n){var o=new c(r);s(()=>{var a=e();a!==a&&(a=k),o.ensure(a,n)})}export{N as k};
